"""Workers come and go: descriptors, memory and leases stay what they were."""

import asyncio
import gc
import os
from pathlib import Path
from time import monotonic

import psutil
import pytest

from bramley.cachestore.exchange import Published
from support.store import StoreChild, ids, settings, store_child, worker

WARM_UP = 5
GROWTH_BYTES = 16 << 20  # of what allocators keep


def held(pid: int) -> tuple[int, int, int]:
    """Descriptors, shared memory segments and bytes of a process."""
    gc.collect()
    process = psutil.Process(pid)
    maps = Path(f"/proc/{pid}/maps")
    segments = maps.read_text().count("memfd:bramley") if maps.exists() else 0
    return process.num_fds(), segments, process.memory_info().rss


async def come_and_go(child: StoreChild, number: int) -> dict[str, int]:
    """Two workers store, read and leave, one of them with all that it holds."""
    async with worker(child.target) as one, worker(child.target) as other:
        tokens = ids(600, number % 8)
        for answer in await one.put(tokens):
            assert isinstance(answer, Published)
        assert await other.read(tokens) == 599
        match = await other.match(tokens)
        assert match is not None
        assert await other.client.acquire(match) is not None  # and never let go
        assert one.client.stage(50_000) is not None
    async with worker(child.target) as last:
        return await last.idle()


async def soak(folder: Path, rounds: int, least_s: float) -> None:
    """Let workers come and go, and compare what store and test hold with what they held early."""
    chosen = settings(folder=str(folder / "disk"), ram_bytes=8 << 20)
    async with store_child(folder) as child:
        await child.start(chosen)
        for number in range(WARM_UP):
            await come_and_go(child, number)
        before, ours = held(child.process.pid), held(os.getpid())
        began_s, number = monotonic(), 0
        while number < rounds or monotonic() - began_s < least_s:
            counts = await come_and_go(child, number)
            assert not counts["read_leases"]
            assert not counts["write_leases"]
            number += 1
        async with asyncio.timeout(20.0):
            while held(child.process.pid)[0] > before[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        after, ours_after = held(child.process.pid), held(os.getpid())
        assert after[1] <= before[1]
        assert after[2] <= before[2] + GROWTH_BYTES
        assert ours_after[0] <= ours[0] + 2
        assert ours_after[1] <= ours[1]
        print(f"{number} rounds: {before} {after}")  # noqa: T201
        await child.stop()


async def test_workers_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    await soak(tmp_path, rounds=15, least_s=0.0)


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
async def test_workers_that_come_and_go_for_an_hour_leave_nothing_behind(tmp_path: Path) -> None:
    await soak(tmp_path, rounds=1000, least_s=3600.0)
