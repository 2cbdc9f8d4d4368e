"""Wakes streams for what can wait: all together, as often as worker/pace.py lets them.

What cannot wait, a stream is woken for by itself (worker/generate.py).
"""

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic, thread_time
from typing import Protocol

from bramley.worker.pace import Pace


class Gathering(Protocol):
    """What a stream is here."""

    def tell(self) -> None:
        """Tell what gathered: wake who sends it."""
        ...


class Telling:
    """Of one worker. Use it on its event loop.

    Attributes:
        rests: whether streams rest, so that ``collect`` is going to be called.
        collect: called before streams are told after a rest; may ``add`` more of them.
    """

    def __init__(self) -> None:
        self.rests = False
        self.collect: Callable[[], None] = lambda: None
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
            self._is_timed = self.rests = True
            asyncio.get_running_loop().call_later(wait_s, self._rested)
        else:
            self._tell()

    def _rested(self) -> None:
        self.rests = False  # first, or what is given now would stay where it is
        self.collect()
        self._is_timed = False
        self._tell()

    def _tell(self) -> None:
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
