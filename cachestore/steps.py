"""Work whose caller may go away midway: what was begun comes to its end all the same."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


async def steps(job: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Go through a job; one whose caller goes away is ended between two of its steps.

    Yields:
        What the job does.
    """
    async with aclosing(job):
        while True:
            at = await _ended(asyncio.ensure_future(anext(job, None)))
            if at is None:
                return
            yield at


async def _ended(step: "asyncio.Future[T]") -> T:
    """Wait for the end of a step; who is cancelled meanwhile, however often, is so after it."""
    cancelled: asyncio.CancelledError | None = None
    while not step.done():
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        step.exception()  # or it would be reported that nobody looked at it
        raise cancelled
    return step.result()


async def whole(step: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
    """Run a step to its end even if its caller goes away midway; then undo what it gained."""
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:

        def ended(done: "asyncio.Task[T]") -> None:
            if not done.cancelled() and done.exception() is None:
                undo(done.result())

        task.add_done_callback(ended)
        raise
