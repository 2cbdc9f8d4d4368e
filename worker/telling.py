"""Wakes streams for what can wait: all together, as often as worker/pace.py lets them.

What cannot wait, a stream is woken for by itself (worker/generate.py).
"""

import asyncio
from collections.abc import Iterable
from time import monotonic, thread_time
from typing import Protocol

from bramley.worker.pace import Pace


class Gathering(Protocol):
    """What a stream is here."""

    def tell(self) -> None:
        """Tell what gathered: wake who sends it."""
        ...


class Telling:
    """Of one worker. Use it on its event loop."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._waiting: dict[Gathering, None] = {}  # in the order in which they came
        self._is_timed = False
        self._began_s = 0.0

    def add(self, streams: Iterable[Gathering]) -> None:
        """Have streams tell what the engine has just said to them: now, or before long."""
        self._waiting.update(dict.fromkeys(streams))
        if self._is_timed or not self._waiting:
            return
        if (wait_s := self._pace.wait_s(monotonic())) > 0:
            self._is_timed = True
            asyncio.get_running_loop().call_later(wait_s, self._tell)
        else:
            self._tell()

    def _tell(self) -> None:
        self._is_timed = False
        streams, self._waiting = self._waiting, {}
        loop = asyncio.get_running_loop()
        # Callbacks run in the order in which they were made: between these two, streams do.
        loop.call_soon(self._begin)
        for stream in streams:
            stream.tell()
        loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began_s = thread_time()

    def _end(self) -> None:
        self._pace.told(thread_time() - self._began_s, monotonic())
