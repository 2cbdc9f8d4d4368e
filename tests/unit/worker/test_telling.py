"""Streams are woken together, and rest after it."""

import asyncio
from time import thread_time

from bramley.worker.telling import Telling

WORK_S = 0.002


class Stream:
    """Sends for a while when it is told to."""

    def __init__(self, name: str, told: list[str]) -> None:
        self._name = name
        self._told = told
        self.is_told = asyncio.Event()

    def tell(self) -> None:
        self._told.append(self._name)
        self.is_told.set()
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        until_s = thread_time() + WORK_S
        while thread_time() < until_s:
            pass


async def test_streams_are_told_at_once_then_rest_and_are_told_together_and_once_each() -> None:
    told: list[str] = []
    a, b, c = (Stream(name, told) for name in "abc")
    telling = Telling()
    telling.add([a, b, b])
    assert told == ["a", "b"]
    await asyncio.sleep(0)  # they send
    told.clear()
    a.is_told.clear()
    telling.add([b, c])
    telling.add([a, b])
    assert told == []
    async with asyncio.timeout(10):
        await a.is_told.wait()
    assert told == ["b", "c", "a"]


async def test_nobody_is_told_where_nobody_waits() -> None:
    told: list[str] = []
    telling = Telling()
    telling.add([])
    telling.add([Stream("a", told)])
    assert told == ["a"]
