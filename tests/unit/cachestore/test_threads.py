"""Calls that block: their waiters hear in time, and what they touch is left to them."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from bramley.cachestore.threads import Lane, Late
from support.store import PATIENCE_S, until


class Gate:
    """What a call waits for."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> str:
        self.is_reached.set()
        assert self.opened.wait(PATIENCE_S)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


async def test_a_call_returns_or_raises() -> None:
    lane = Lane(1, "test")
    assert await lane.start(int, "7").within(PATIENCE_S) == 7
    with pytest.raises(ValueError, match="invalid"):
        await lane.start(int, "x").whole()
    await until(lambda: lane.is_idle)
    assert lane.close(PATIENCE_S)


async def test_a_late_call_is_told_of_and_counted_until_it_ends(gate: Gate) -> None:
    lane = Lane(2, "test")
    work = lane.start(gate.wait)
    await asyncio.to_thread(gate.is_reached.wait)
    ended: list[str] = []
    with pytest.raises(Late):
        await work.within(0.0)
    work.when_ended(lambda: ended.append("now"))
    assert (lane.late, lane.is_stuck, ended) == (1, False, [])
    assert await lane.start(int, "7").within(PATIENCE_S) == 7  # the other thread goes on
    gate.opened.set()
    await until(lambda: lane.late == 0)
    assert ended == ["now"]
    work.when_ended(lambda: ended.append("at once"))
    assert ended == ["now", "at once"]
    assert lane.close(PATIENCE_S)


async def test_a_call_that_had_not_begun_never_does_unless_it_must(gate: Gate) -> None:
    lane = Lane(1, "test")
    stuck = lane.start(gate.wait)
    made: list[str] = []
    with pytest.raises(Late):
        await lane.start(made.append, "given up").within(0.0)
    assert lane.late == 0
    must = lane.start(made.append, "kept")
    with pytest.raises(Late):
        await must.within(0.0, cancel=False)
    assert lane.is_stuck
    gate.opened.set()
    assert await stuck.whole() == "through"
    await must.whole()
    assert made == ["kept"]
    await until(lambda: not lane.is_stuck)
    assert lane.close(PATIENCE_S)


async def test_a_stuck_thread_holds_up_no_end(gate: Gate) -> None:
    lane = Lane(1, "test")
    lane.start(gate.wait)
    assert not lane.close(0.0)
    gate.opened.set()
    await until(lambda: lane.is_idle)
