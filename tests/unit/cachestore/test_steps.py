"""A job whose caller goes away: it is ended between two of its steps, and only then."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from bramley.cachestore.steps import steps


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_that_is_cancelled_again_and_again_waits_for_the_end_of_the_step(
    *, fails: bool
) -> None:
    begun, go_on, told = asyncio.Event(), asyncio.Event(), list[str]()

    async def job() -> AsyncGenerator[int]:
        try:
            begun.set()
            await go_on.wait()
            told.append("done")
            if fails:
                raise OSError
            yield 1
        finally:
            told.append("closed")

    async def caller() -> None:
        async for _ in steps(job()):
            told.append("told")

    calling = asyncio.create_task(caller())
    await begun.wait()
    for _ in range(3):
        calling.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not calling.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert told == ["done", "closed"]
