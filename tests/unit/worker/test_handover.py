"""What the engine says reaches the loop in order, and wakes it only where it has to."""

import asyncio
from collections.abc import Sequence

import pytest

from bramley.worker.engine.outputs import Output, Seated, Token
from bramley.worker.engine.stopping import Finish
from bramley.worker.handover import Handover
from bramley.worker.telling import Telling


class Both:
    """A handover and a telling, as a worker has them; ``told`` is what the loop was given."""

    def __init__(self) -> None:
        self.told: list[Output] = []
        self.telling = Telling()
        self.telling.rests = True
        self.handover = Handover(asyncio.get_running_loop(), self._deliver, self.telling)
        self.handover.patient = {"a", "b"}

    def _deliver(self, outputs: Sequence[Output]) -> None:
        self.told += outputs

    async def give(self, *outputs: Output) -> None:
        """Give a step's outputs on another thread, and let the loop run what it was woken for."""
        await asyncio.to_thread(self.handover.give, outputs)
        await asyncio.sleep(0)


def token(request_id: str, finish: Finish | None = None) -> Token:
    return Token(request_id, 7, 0.0, finish)


async def test_tokens_that_can_wait_stay_until_they_are_taken() -> None:
    both = Both()
    steps = [token("a"), token("b")], [token("b")]
    for step in steps:
        await both.give(*step)
    assert both.told == []
    both.handover.take()
    assert both.told == [*steps[0], *steps[1]]


@pytest.mark.parametrize(
    "output",
    [token("a", Finish("length")), token("first"), Seated("a", 0.0)],
    ids=["last", "first", "seated"],
)
async def test_what_cannot_wait_takes_what_waited_along_in_order(output: Output) -> None:
    both = Both()
    await both.give(token("a"))
    await both.give(token("b"), output)
    assert both.told == [token("a"), token("b"), output]


async def test_nothing_stays_where_nobody_rests() -> None:
    both = Both()
    both.telling.rests = False
    await both.give(token("a"))
    assert both.told == [token("a")]


class Counter:
    """A stream that says, when it is told to tell, how many outputs it has by then."""

    def __init__(self) -> None:
        self.has = 0
        self.said: asyncio.Queue[int] = asyncio.Queue()

    def tell(self) -> None:
        self.said.put_nowait(self.has)
        # A rest is in proportion to what it takes on the loop.
        asyncio.get_running_loop().call_soon(sum, range(200_000))


async def test_what_was_given_in_a_rest_is_told_after_it() -> None:
    stream, telling = Counter(), Telling()

    def deliver(outputs: Sequence[Output]) -> None:
        stream.has += len(outputs)
        telling.add([stream])

    handover = Handover(asyncio.get_running_loop(), deliver, telling)
    handover.patient = {"a"}
    handover.give([token("a")])
    async with asyncio.timeout(10):
        assert await stream.said.get() == 1
        await asyncio.sleep(0)  # it has told
        deliver([token("a")])
        assert telling.rests
        await asyncio.to_thread(handover.give, [token("a")])
        assert stream.has == 2
        assert await stream.said.get() == 3
    assert not telling.rests
