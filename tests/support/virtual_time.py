"""A clock that stands still while anybody works: what is measured by it is exact.

Servers wait for a time, clients read the clock and sleep. Time goes on to the next that is waited
for once all who take part wait; whoever asks takes part from before the request is sent until its
answer is read. After each word the server waits until its client has looked at the clock.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from typing_extensions import override

PATIENCE_S = 20.0  # of the real clock


class Gone(Exception):
    """The client has left."""


class Times(Protocol):
    """What a server knows of time."""

    def now(self) -> float:
        """Seconds."""
        ...

    def until(self, name: str, due_s: float) -> None:
        """Wait for a time, as the request of that name."""
        ...

    def until_read(self, name: str, words: int) -> None:
        """Wait until the client has read so many words."""
        ...


class RealTime(Times):
    """The machine's."""

    @override
    def now(self) -> float:
        return time.monotonic()

    @override
    def until(self, name: str, due_s: float) -> None:
        time.sleep(max(due_s - time.monotonic(), 0.0))

    @override
    def until_read(self, name: str, words: int) -> None:
        return


class _Part:
    """One who takes part: what time it waits for, and how often it has read the clock."""

    def __init__(self) -> None:
        self.due_s: float | None = None
        self.reads = 0


class VirtualTime(Times):
    """See the module."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._parts: dict[str, _Part] = {}
        self._changed = threading.Condition()
        self._own = threading.local()

    @override
    def now(self) -> float:
        with self._changed:
            part: _Part | None = getattr(self._own, "part", None)
            if part is not None:
                part.reads += 1
                self._changed.notify_all()
            return self._now_s

    def sleep(self, seconds: float) -> None:
        """Wait as long."""
        name = f"sleep {threading.get_ident()}"
        with self._changed:
            self._parts[name] = _Part()
            due_s = self._now_s + seconds
        self.until(name, due_s)
        self._leave(name)

    @contextmanager
    def asking(self, name: str) -> Generator[None]:
        """Take part as a client of one request while the block runs.

        Yields:
            Nothing.
        """
        part = _Part()
        with self._changed:
            assert name not in self._parts, "two requests at once are the same"
            self._parts[name] = part
        self._own.part = part
        try:
            yield
        finally:
            self._own.part = None
            self._leave(name)

    def _leave(self, name: str) -> None:
        with self._changed:
            del self._parts[name]
            self._go_on()

    def _go_on(self) -> None:
        dues = [part.due_s for part in self._parts.values() if part.due_s is not None]
        if dues and len(dues) == len(self._parts):
            self._now_s = max(self._now_s, min(dues))
        self._changed.notify_all()

    @override
    def until(self, name: str, due_s: float) -> None:
        with self._changed:
            part = self._part(name)
            part.due_s = due_s
            self._go_on()
            self._wait(lambda: self._now_s >= due_s or self._parts.get(name) is not part)
            part.due_s = None
            self._part(name)

    @override
    def until_read(self, name: str, words: int) -> None:
        with self._changed:
            part = self._part(name)
            # It read the clock once as it asked.
            self._wait(lambda: part.reads > words or self._parts.get(name) is not part)

    def _part(self, name: str) -> _Part:
        if name not in self._parts:
            raise Gone
        return self._parts[name]

    def _wait(self, until: Callable[[], bool]) -> None:
        assert self._changed.wait_for(until, PATIENCE_S), "time stands still"
