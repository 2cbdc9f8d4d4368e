"""The arena: runs never overlap, nothing is lost, the budget holds."""

import itertools
import random

import pytest

from bramley.cachestore.arena import SEGMENT_BYTES, Arena, FreeList, Run
from bramley.cachestore.objects import ALIGN


def grown(arena: Arena, size: int, segment_id: int) -> Run:
    """Allocate, with a new segment if there must be one."""
    run = arena.allocate(size)
    if run is None:
        arena.add(segment_id, arena.growth(size))
        run = arena.allocate(size)
    assert run is not None
    return run


def test_runs_are_whole_steps_and_lie_side_by_side() -> None:
    arena = Arena(SEGMENT_BYTES)
    first, second = grown(arena, 1, 1), grown(arena, ALIGN + 1, 2)
    assert first == Run(1, 0, ALIGN)
    assert second == Run(1, ALIGN, 2 * ALIGN)


def test_freed_neighbours_become_one_run() -> None:
    arena = Arena(4 * ALIGN)
    runs = [grown(arena, ALIGN, 1) for _ in range(4)]
    for at in (0, 2, 1):
        arena.free(runs[at])
    assert arena.allocate(3 * ALIGN) == Run(1, 0, 3 * ALIGN)
    arena.check()


def test_a_large_object_gets_a_segment_of_its_own() -> None:
    arena = Arena(4 * SEGMENT_BYTES)
    assert arena.growth(3 * SEGMENT_BYTES) == 3 * SEGMENT_BYTES
    assert arena.growth(1) == SEGMENT_BYTES


def test_the_last_segment_is_what_the_budget_leaves() -> None:
    arena = Arena(SEGMENT_BYTES + 5 * ALIGN + 3)
    arena.add(1, arena.growth(1))
    assert arena.growth(2 * ALIGN) == 5 * ALIGN
    assert arena.growth(6 * ALIGN) == 0


def test_idle_segments_can_make_room_for_a_larger_one() -> None:
    arena = Arena(2 * SEGMENT_BYTES)
    first, second = grown(arena, SEGMENT_BYTES, 1), grown(arena, SEGMENT_BYTES, 2)
    arena.free(first)
    assert arena.idle() == [1]
    arena.free(second)
    for segment_id in arena.idle():
        arena.remove(segment_id)
    assert arena.growth(2 * SEGMENT_BYTES) == 2 * SEGMENT_BYTES


def test_a_run_freed_twice_is_found_out() -> None:
    arena = Arena(SEGMENT_BYTES)
    run = grown(arena, ALIGN, 1)
    arena.free(run)
    with pytest.raises(KeyError):
        arena.free(run)
    free_list = FreeList(4 * ALIGN)
    free_list.allocate(2 * ALIGN)
    free_list.free(0, ALIGN)
    with pytest.raises(AssertionError):
        free_list.free(0, ALIGN)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_nothing_overlaps_and_all_comes_back(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    arena = Arena(3 * SEGMENT_BYTES)
    held: list[Run] = []
    last_id = 0
    for _ in range(2000):
        if held and draw.random() < 0.5:
            arena.free(held.pop(draw.randrange(len(held))))
            continue
        size = draw.randrange(1, 200 * ALIGN)
        run = arena.allocate(size)
        if run is None and (growth := arena.growth(size)):
            last_id += 1
            arena.add(last_id, growth)
            run = arena.allocate(size)
        if run is not None:
            held.append(run)
    spans = sorted((run.segment_id, run.offset, run.offset + run.size) for run in held)
    for (segment, _, end), (other, start, _) in itertools.pairwise(spans):
        assert segment != other or end <= start
    arena.check()
    for run in held:
        arena.free(run)
    arena.check()
    assert arena.used_bytes == 0
    assert len(arena.idle()) == last_id
