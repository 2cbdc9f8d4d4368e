"""How the supervisor's tasks hear of each other's changes, and how they end if one breaks."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

log = logging.getLogger(__name__)

EXIT_BROKEN: Final = 70
T = TypeVar("T")


class Changes:
    """Tells any number of waiters that something has changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait."""
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Take the event of the next change; take it before looking, so that none is missed."""
        return self._next

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds, looking again at each change."""
        while not condition():
            await self._next.wait()


def guarded(coroutine: Coroutine[None, None, T]) -> asyncio.Task[T]:
    """Run a task whose failure ends the process at once."""
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_end_if_broken)
    return task


def _end_if_broken(task: asyncio.Task[T]) -> None:
    # Not an orderly end: asyncio would close the transports of its subprocesses, which kills
    # the children; they are to go on for whoever supervises next.
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        log.critical("the supervisor is broken; its children go on", exc_info=error)
        os._exit(EXIT_BROKEN)
