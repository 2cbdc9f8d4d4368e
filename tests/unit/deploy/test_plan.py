"""``plan``, named by what it decides."""

from dataclasses import replace

from bramley.deploy.supervisor import (
    Forget,
    Key,
    Level,
    Limits,
    Seen,
    Start,
    Stop,
    Wait,
    Wanted,
    backoff_s,
    crashes_after,
    plan,
)

ROUTER, A, B = Key("router", "router"), Key("worker", "a"), Key("worker", "b")
STORE = Key("store", "store")
LIMITS = Limits(
    start_s=60,
    stop_s=30,
    drain_s=20,
    flush_s=90,
    backoff_min_s=0.1,
    backoff_max_s=10,
    settled_s=30,
    crash_loop_starts=5,
    crash_loop_pause_s=300,
)
NOW_S = 1000.0
DESIRED = {ROUTER: Wanted(spec="r"), A: Wanted(spec="a")}
ROUTER_UP = Seen(key=ROUTER, epoch=1, spec="r", started_s=900, is_ready=True)
A_UP = Seen(key=A, epoch=2, spec="a", started_s=900, is_ready=True)
STORE_UP = Seen(key=STORE, epoch=3, spec="s", started_s=900, is_ready=True)


def test_nothing_to_do_waits_for_a_change() -> None:
    assert plan(DESIRED, [ROUTER_UP, A_UP], NOW_S, LIMITS) == Wait(None)


def test_the_router_is_started_first() -> None:
    assert plan(DESIRED, [], NOW_S, LIMITS) == Start(ROUTER)


def test_a_missing_worker_is_started() -> None:
    assert plan(DESIRED, [ROUTER_UP], NOW_S, LIMITS) == Start(A)


def test_a_crashed_worker_waits_for_the_end_of_its_backoff() -> None:
    desired = {**DESIRED, A: Wanted(spec="a", not_before_s=NOW_S + 1)}
    assert plan(desired, [ROUTER_UP], NOW_S, LIMITS) == Wait(NOW_S + 1)
    assert plan(desired, [ROUTER_UP], NOW_S + 1, LIMITS) == Start(A)


def test_one_workers_backoff_does_not_hold_up_another() -> None:
    desired = {A: Wanted(spec="a", not_before_s=NOW_S + 1), B: Wanted(spec="b")}
    assert plan(desired, [], NOW_S, LIMITS) == Start(B)


def test_the_dead_are_forgotten_before_anything_is_started() -> None:
    assert plan(DESIRED, [replace(A_UP, is_gone=True)], NOW_S, LIMITS) == Forget(2)


def test_no_incarnation_starts_beside_one_that_still_lives() -> None:
    dying = replace(A_UP, terminated_s=NOW_S)
    assert plan(DESIRED, [ROUTER_UP, dying], NOW_S, LIMITS) == Wait(NOW_S + LIMITS.stop_s)


def test_an_unwanted_worker_is_terminated() -> None:
    assert plan({ROUTER: DESIRED[ROUTER]}, [ROUTER_UP, A_UP], NOW_S, LIMITS) == Stop(
        2, Level.TERMINATE
    )


def test_a_worker_with_another_spec_is_replaced() -> None:
    old = replace(A_UP, spec="old")
    assert plan(DESIRED, [ROUTER_UP, old], NOW_S, LIMITS) == Stop(2, Level.TERMINATE)


def test_a_stray_is_terminated_even_under_a_wanted_name() -> None:
    stray = replace(A_UP, is_usable=False)
    assert plan(DESIRED, [ROUTER_UP, stray], NOW_S, LIMITS) == Stop(2, Level.TERMINATE)


def test_a_role_of_another_release_is_terminated_too() -> None:
    other = Seen(key=Key("oracle", "x"), epoch=3, spec="", started_s=0, is_usable=False)
    assert plan(DESIRED, [ROUTER_UP, A_UP, other], NOW_S, LIMITS) == Stop(3, Level.TERMINATE)


def test_the_terminated_is_told_once_and_killed_when_its_time_is_up() -> None:
    stopping = replace(A_UP, terminated_s=NOW_S)
    seen = [ROUTER_UP, stopping]
    desired = {ROUTER: DESIRED[ROUTER]}
    assert plan(desired, seen, NOW_S + 29, LIMITS) == Wait(NOW_S + 30)
    assert plan(desired, seen, NOW_S + 30, LIMITS) == Stop(2, Level.KILL)


def test_the_killed_is_only_waited_for() -> None:
    killed = replace(A_UP, terminated_s=NOW_S - 100, is_killed=True)
    assert plan({}, [killed], NOW_S, LIMITS) == Wait(None)


def test_the_router_has_time_to_drain() -> None:
    draining = replace(ROUTER_UP, terminated_s=NOW_S)
    assert plan({}, [draining], NOW_S + 49, LIMITS) == Wait(NOW_S + 50)
    assert plan({}, [draining], NOW_S + 50, LIMITS) == Stop(1, Level.KILL)


def test_the_store_has_time_to_write_what_waits_for_the_disk() -> None:
    flushing = replace(STORE_UP, terminated_s=NOW_S)
    assert plan({}, [flushing], NOW_S + 119, LIMITS) == Wait(NOW_S + 120)
    assert plan({}, [flushing], NOW_S + 120, LIMITS) == Stop(3, Level.KILL)


def test_a_store_that_keeps_crashing_holds_up_nobody() -> None:
    desired = {STORE: Wanted(spec="s", not_before_s=NOW_S + 9), **DESIRED}
    assert plan(desired, [], NOW_S, LIMITS) == Start(ROUTER)
    assert plan(desired, [ROUTER_UP], NOW_S, LIMITS) == Start(A)
    assert plan(desired, [ROUTER_UP, A_UP], NOW_S, LIMITS) == Wait(NOW_S + 9)


def test_a_child_that_is_not_ready_in_time_is_killed() -> None:
    mute = replace(A_UP, is_ready=False, started_s=NOW_S)
    seen = [ROUTER_UP, mute]
    assert plan(DESIRED, seen, NOW_S + 59, LIMITS) == Wait(NOW_S + 60)
    assert plan(DESIRED, seen, NOW_S + 60, LIMITS) == Stop(2, Level.KILL)


def test_workers_are_stopped_after_the_router_and_the_store_last() -> None:
    seen = [STORE_UP, A_UP, ROUTER_UP]
    assert plan({}, seen, NOW_S, LIMITS) == Stop(1, Level.TERMINATE)
    draining = replace(ROUTER_UP, terminated_s=NOW_S)
    assert plan({}, [STORE_UP, A_UP, draining], NOW_S, LIMITS) == Wait(NOW_S + 50)
    assert plan({}, [STORE_UP, A_UP], NOW_S, LIMITS) == Stop(2, Level.TERMINATE)
    assert plan({}, [STORE_UP], NOW_S, LIMITS) == Stop(3, Level.TERMINATE)


def test_workers_are_stopped_together() -> None:
    other = replace(A_UP, key=B, epoch=3)
    stopping = replace(A_UP, terminated_s=NOW_S)
    assert plan({}, [stopping, other], NOW_S, LIMITS) == Stop(3, Level.TERMINATE)


def test_the_backoff_doubles_up_to_its_limit() -> None:
    pauses = [backoff_s("router", crashes, LIMITS) for crashes in range(1, 10)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert backoff_s("router", 10_000, LIMITS) == 10
    assert backoff_s("store", 10_000, LIMITS) == 10


def test_a_worker_that_keeps_crashing_is_tried_rarely() -> None:
    pauses = [backoff_s("worker", crashes, LIMITS) for crashes in range(1, 7)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 300, 300]
    patient = replace(LIMITS, backoff_max_s=600)
    assert backoff_s("worker", 5, patient) == 600


def test_a_pin_is_no_matter_to_the_plan() -> None:
    desired = {**DESIRED, A: replace(DESIRED[A], is_pinned=True)}
    assert plan(desired, [ROUTER_UP, A_UP], NOW_S, LIMITS) == Wait(None)


def test_a_long_life_forgives_earlier_crashes() -> None:
    assert crashes_after(5, 29.9, LIMITS) == 6
    assert crashes_after(5, 30.0, LIMITS) == 1
