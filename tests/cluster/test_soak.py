"""Many short requests with random cancels leave nothing behind."""

import asyncio
import random
from contextlib import aclosing

import psutil
import pytest

from support.served import Served

REQUESTS = 2000
AT_ONCE = 12


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_thousands_of_requests_with_cancels_leave_nothing_behind(served: Served) -> None:
    dice = random.Random(7)  # noqa: S311
    expected = await served.completed("tiny", "once", max_tokens=8)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            leaves_after = dice.randrange(4) if dice.random() < 0.1 else None
            prompt = f"{number} " * dice.randrange(1, 20)
            call = served.client.generate("tiny", prompt, max_tokens=dice.randrange(1, 12))
            async with aclosing(call) as events:
                seen = 0
                async for _ in events:
                    seen += 1
                    if leaves_after is not None and seen > leaves_after:
                        return

    figures: list[tuple[int, int]] = []
    for quarter in range(4):
        start = quarter * REQUESTS // 4
        await asyncio.gather(*[one(start + i) for i in range(REQUESTS // 4)])
        await served.idle("tiny")
        figures.append(_figures(served))
    again = await served.completed("tiny", "once", max_tokens=8)
    assert again.token_ids == expected.token_ids
    (_, descriptors), *_, last = figures[1:]
    assert last[1] <= descriptors + 4, figures
    assert last[0] <= figures[1][0] * 1.05, figures  # resident bytes, once all is warm


def _figures(served: Served) -> tuple[int, int]:
    children = [psutil.Process(pid) for pid in served.cluster.children().values()]
    return sum(c.memory_info().rss for c in children), sum(c.num_fds() for c in children)
