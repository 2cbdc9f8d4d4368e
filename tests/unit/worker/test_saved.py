"""Where the prefill of a row stops to be saved, and how much of it is saved there."""

import pytest

from bramley.worker.cache.saved import (
    STATE_EVERY,
    Restore,
    Saving,
    StoredPart,
    StoredState,
)


def saving(boundary: int, *, pauses: bool) -> Saving:
    return Saving(stage=lambda _: None, boundary=boundary, extent_blocks=1, pauses=pauses)


def stops(one: Saving, end: int) -> list[int]:
    """Where a prompt's prefill stops, from its first token to its end."""
    found = [0]
    while found[-1] < end:
        found.append(one.next_stop(found[-1], end))
    return found[1:]


@pytest.mark.parametrize(
    ("boundary", "end", "expected"),
    [
        (40, 50, [40, 50]),
        (50, 50, [50]),
        (51, 50, [50]),  # a prompt whose last token is left for the first step
        (0, 50, [50]),
        (5000, 5010, [STATE_EVERY, 2 * STATE_EVERY, 5000, 5010]),
        (STATE_EVERY, STATE_EVERY + 1, [STATE_EVERY, STATE_EVERY + 1]),
        (10, 2 * STATE_EVERY, [10, STATE_EVERY, 2 * STATE_EVERY]),
    ],
)
def test_a_row_that_cannot_go_back_stops_wherever_its_state_is_kept(
    boundary: int, end: int, expected: list[int]
) -> None:
    one = saving(boundary, pauses=True)
    assert stops(one, end) == expected
    assert [one.place(stop, is_done=stop == end) for stop in expected] == expected


def test_others_stop_at_the_end_alone_and_are_saved_up_to_the_boundary() -> None:
    one = saving(5000, pauses=False)
    assert stops(one, 5010) == [5010]
    assert one.place(STATE_EVERY, is_done=False) is None
    assert one.place(5000, is_done=False) == 5000
    assert one.place(5010, is_done=True) == 5000


def test_between_its_stops_nothing_of_a_row_is_saved() -> None:
    one = saving(100, pauses=True)
    assert [one.place(computed, is_done=False) for computed in (16, 99, 101)] == [None] * 3


def test_a_stored_prefix_ends_where_its_state_is() -> None:
    part = StoredPart(0, 20, 256, memoryview(b""))

    def restore(parts: tuple[StoredPart, ...], state: StoredState | None) -> Restore:
        return Restore(parts, lambda: True, lambda: None, state)

    state = StoredState(20, memoryview(b""))
    assert [restore(*one).tokens for one in (((part,), None), ((part,), state), ((), state))] == [
        20,
        20,
        20,
    ]
    assert restore((), None).tokens == 0
