"""What the router believes of a worker after each piece of news."""

import pytest

from bramley.common.ids import ModelName, WorkerName
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2
from bramley.router.fleet import (
    Event,
    LoadLost,
    LoadSeen,
    ProcessGone,
    ProcessSeen,
    StartRefused,
    StartTaken,
    TriedAgain,
    WorkerView,
    apply,
)

STARTING = node_pb2.PROCESS_STATE_STARTING
RUNNING = node_pb2.PROCESS_STATE_RUNNING
BACKOFF = node_pb2.PROCESS_STATE_BACKOFF


def process(
    epoch: int, state: node_pb2.ProcessState.ValueType = RUNNING, restarts: int = 0
) -> ProcessSeen:
    return ProcessSeen(
        node_pb2.Process(
            role="worker",
            name="m",
            epoch=epoch,
            state=state,
            restarts=restarts,
            address=f"unix:{epoch}" if state == RUNNING else "",
            last_exit="signal SIGKILL" if restarts else "",
        )
    )


def load(
    epoch: int, state: types_pb2.ModelState.ValueType = types_pb2.MODEL_STATE_READY
) -> LoadSeen:
    limits = types_pb2.ModelLimits(max_rows=epoch)
    return LoadSeen(epoch, worker_pb2.Load(state=state, limits=limits, revision=f"r{epoch}"))


def after(*events: Event) -> WorkerView:
    view = WorkerView(ModelName("m"), WorkerName("m"))
    for event in events:
        view = apply(view, event)
    return view


@pytest.mark.parametrize(
    ("events", "state", "is_ready"),
    [
        ((), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1, STARTING),), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1),), types_pb2.MODEL_STATE_STARTING, False),
        (
            (process(1), load(1, types_pb2.MODEL_STATE_LOADING)),
            types_pb2.MODEL_STATE_LOADING,
            False,
        ),
        ((process(1), load(1)), types_pb2.MODEL_STATE_READY, True),
        (
            (process(1), load(1, types_pb2.MODEL_STATE_DEGRADED)),
            types_pb2.MODEL_STATE_DEGRADED,
            True,
        ),
        (
            (process(1), load(1), process(1, node_pb2.PROCESS_STATE_STOPPING)),
            types_pb2.MODEL_STATE_DRAINING,
            False,
        ),
        ((process(1), load(1), LoadLost(1)), types_pb2.MODEL_STATE_DEGRADED, False),
        ((process(1), LoadLost(1)), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1), load(1), LoadLost(1), load(1)), types_pb2.MODEL_STATE_READY, True),
        ((process(1), load(1), process(1, BACKOFF)), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1), load(1), process(2, STARTING)), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1), load(1), process(2)), types_pb2.MODEL_STATE_STARTING, False),
        ((process(1), load(1), ProcessGone()), types_pb2.MODEL_STATE_STARTING, False),
        ((StartRefused("taken"),), types_pb2.MODEL_STATE_FAILED, False),
        ((StartRefused("taken"), StartTaken()), types_pb2.MODEL_STATE_STARTING, False),
    ],
)
def test_state_follows_the_news(
    events: tuple[Event, ...], state: types_pb2.ModelState.ValueType, is_ready: bool
) -> None:
    view = after(*events)
    assert (view.state, view.is_ready) == (state, is_ready)


@pytest.mark.parametrize("stale", [process(1), process(1, BACKOFF), load(1), LoadLost(1)])
def test_an_older_epochs_news_changes_nothing(stale: Event) -> None:
    view = after(process(1), load(1), process(2), load(2))
    assert apply(view, stale) == view


@pytest.mark.parametrize("gone", [process(1, BACKOFF, 1), ProcessGone()])
def test_a_report_of_a_process_that_has_ended_changes_nothing(gone: Event) -> None:
    view = after(process(1), gone)
    assert apply(view, load(1)) == view


def test_a_repeated_process_keeps_its_load() -> None:
    view = after(process(1), load(1))
    assert apply(view, process(1)) == view


def test_limits_and_revision_outlive_the_worker_that_told_them() -> None:
    view = after(process(1), load(1), process(2, STARTING))
    assert view.limits is not None
    assert (view.limits.max_rows, view.revision) == (1, "r1")


def test_three_starts_without_becoming_ready_are_a_failure_with_its_reason() -> None:
    view = after(process(1), process(2, STARTING, 1), process(3, STARTING, 2))
    assert not view.is_failed
    view = apply(view, process(4, STARTING, 3))
    assert view.is_failed
    assert view.state == types_pb2.MODEL_STATE_FAILED
    assert view.reason == "signal SIGKILL"


def test_becoming_ready_ends_the_failure() -> None:
    view = after(process(1), process(4, RUNNING, 3), load(4), process(5, STARTING, 4))
    assert not view.is_failed


def test_restarts_before_the_router_came_are_no_failure() -> None:
    assert not after(process(9, STARTING, 8)).is_failed


def test_a_count_that_starts_afresh_is_no_failure() -> None:
    view = after(process(1), process(6, RUNNING, 5), load(6), process(7, STARTING, 0))
    assert not view.is_failed
    assert apply(view, process(10, STARTING, 3)).is_failed


def test_a_worker_that_says_it_failed_is_believed() -> None:
    view = after(process(1), load(1, types_pb2.MODEL_STATE_FAILED))
    assert view.is_failed
    assert view.reason


def test_a_worker_inside_one_step_for_half_the_time_is_degraded_until_it_steps_again() -> None:
    stuck = worker_pb2.Load(state=types_pb2.MODEL_STATE_READY, step_age_s=31.0)
    view = apply(after(process(1), load(1)), LoadSeen(1, stuck), hang_timeout_s=60.0)
    assert (view.state, view.is_ready) == (types_pb2.MODEL_STATE_DEGRADED, False)
    assert "one step" in view.reason
    assert apply(view, load(1), hang_timeout_s=60.0).is_ready


def test_what_failed_before_an_operators_try_counts_no_more() -> None:
    view = after(*(process(epoch, BACKOFF, epoch) for epoch in range(1, 6)))
    assert view.is_failed
    assert not apply(view, TriedAgain()).is_failed
