"""What waits for a client is bounded, and counted for as long as it waits."""

import asyncio

import pytest

from bramley.common.errors import SlowReader
from bramley.protos.v1 import generation_pb2
from bramley.router.outbox import Outbox


def delta(index: int = 0, text: str = "x") -> generation_pb2.Delta:
    return generation_pb2.Delta(index=index, token_ids=[1], text=text)


async def test_more_than_may_wait_is_refused() -> None:
    outbox = Outbox(1, 50)
    for _ in range(4):
        outbox.put(delta(text="x" * 10))
    with pytest.raises(SlowReader, match="60 bytes of the answer wait"):
        outbox.put(delta())


async def test_one_message_may_be_larger_than_all_that_may_wait() -> None:
    outbox = Outbox(0, 50)
    outbox.put(generation_pb2.Started(prompt_tokens=5))
    large = delta(text="x" * 1000)
    outbox.put(large)
    with pytest.raises(SlowReader):
        outbox.put(delta())
    assert await outbox.get() == generation_pb2.Started(prompt_tokens=5)
    assert await outbox.get() is large
    outbox.put(delta())


async def test_a_reader_that_keeps_up_but_for_one_message_is_never_too_slow() -> None:
    outbox = Outbox(0, 100)
    outbox.put(delta(0))
    outbox.put(delta(1))
    for _ in range(200):
        outbox.put(delta(0))
        outbox.put(delta(1))
        assert await outbox.get() is not None


async def test_what_waits_is_fetched_before_the_end() -> None:
    outbox = Outbox(0, 100)
    outbox.put(delta())
    outbox.close()
    assert await outbox.get() == delta()
    assert await outbox.get() is None


async def test_a_reader_that_came_first_is_woken() -> None:
    outbox = Outbox(0, 100)
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(delta())
    async with asyncio.timeout(5):
        assert await reading == delta()
