"""Which worker a request goes to."""

from bramley.common.ids import ModelName
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2
from bramley.router.fleet import WorkerView
from bramley.router.routing import Candidate, choose_worker


def candidate(
    epoch: int, *, booked: int = 0, reported: int = 0, is_ready: bool = True
) -> Candidate:
    state = types_pb2.MODEL_STATE_READY if is_ready else types_pb2.MODEL_STATE_LOADING
    view = WorkerView(
        ModelName("m"),
        epoch=epoch,
        process=node_pb2.PROCESS_STATE_RUNNING,
        address="unix:x",
        load=worker_pb2.Load(state=state, requests_running=reported),
    )
    return Candidate(view, booked)


def test_nobody_is_chosen_when_nobody_is_ready() -> None:
    assert choose_worker([]) is None
    assert choose_worker([candidate(1, is_ready=False)]) is None


def test_the_only_ready_one_is_chosen() -> None:
    choice = choose_worker([candidate(1, is_ready=False), candidate(2, booked=9)])
    assert choice is not None
    assert choice.epoch == 2


def test_the_least_loaded_is_chosen_by_bookings_and_reports() -> None:
    choice = choose_worker(
        [candidate(1, booked=3), candidate(2, reported=2), candidate(3, booked=1, reported=4)]
    )
    assert choice is not None
    assert choice.epoch == 2


def test_the_first_of_equals_is_chosen() -> None:
    choice = choose_worker([candidate(1, booked=1), candidate(2, booked=1)])
    assert choice is not None
    assert choice.epoch == 1
