"""Threads for what blocks, none of whose callers waits for ever.

A call on a sick disk may never come back. Whoever waits for it is told so in time; what the call
reads or writes stays untouched until it has really ended.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Late(OSError):
    """It did not end in time, and may end yet."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


class Work(Generic[T]):
    """One call on a thread. Its owner waits for it, by either of two ways, once."""

    def __init__(self, lane: "Lane", job: "Future[T]") -> None:
        self._lane = lane
        self._job = job
        self._future = asyncio.wrap_future(job)
        self._future.add_done_callback(_seen)

    async def within(self, seconds: float, *, cancel: bool = True) -> T:
        """Wait for it, but no longer.

        Args:
            seconds: longest wait.
            cancel: whether one that has not begun by then never shall.

        Returns:
            What it returned.

        Raises:
            Late: it has not ended.
        """
        await asyncio.wait([self._future], timeout=seconds)
        if not self._future.done():
            if not (cancel and self._job.cancel()):
                self._lane.late += 1
                self.when_ended(self._lane.came_back)
            raise Late
        return self._future.result()

    async def whole(self) -> T:
        """Wait for its end, however long that takes; returns or raises what it did."""
        await asyncio.wait([self._future])
        return self._future.result()

    def when_ended(self, then: Callable[[], None]) -> None:
        """Do something once the call touches nothing any more: now, if so it is."""
        if self._job.done():
            then()
        else:
            self._future.add_done_callback(lambda _: then())


class Lane:
    """Some threads and what waits for them.

    Attributes:
        late: calls that did not end in time, and have not yet.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.late = 0
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, name)
        self._jobs: set[Future[Any]] = set()

    @property
    def is_stuck(self) -> bool:
        """Whether no thread is left that comes back."""
        return self.late >= self._threads

    @property
    def is_idle(self) -> bool:
        """Whether nothing is done, or waits."""
        return not self._jobs

    def start(self, call: Callable[..., T], *arguments: object) -> Work[T]:
        """Have a call made; those of a lane of one thread are made in their order."""
        job = self._pool.submit(call, *arguments)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return Work(self, job)

    def came_back(self) -> None:
        """One that was late has ended."""
        self.late -= 1

    def close(self, seconds: float) -> bool:
        """Take nothing more, and wait for the rest; says whether all of it is done."""
        self._pool.shutdown(wait=False)
        return not wait(self._jobs.copy(), seconds).not_done


def _seen(future: "asyncio.Future[Any]") -> None:
    """Have no error reported of which nobody wants to hear any more."""
    if not future.cancelled():
        future.exception()
