"""A disk that does not answer: a miss in time, RAM goes on, and no memory is used twice."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from bramley.cachestore import process as processes
from bramley.cachestore import spill, tiers
from bramley.cachestore.exchange import Published
from bramley.cachestore.files import Files
from bramley.cachestore.process import StoreProcess
from support.store import PATIENCE_S, Worker, ids, local_store, settings, until, worker

AT_ONCE_S = 1.0  # less than any wait of these tests


class StuckFiles(Files):
    """Reads of payloads, or writes, wait until they may go on.

    Attributes:
        reading: calls that wait.
    """

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.may_write = threading.Event()
        self.may_sync = threading.Event()
        self.reading = 0
        self.go_on()

    def go_on(self) -> None:
        for event in (self.may_read, self.may_write, self.may_sync):
            event.set()

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        self.reading += 1
        assert self.may_read.wait(PATIENCE_S)
        self.reading -= 1
        return super().read_into(fd, target, offset)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert self.may_write.wait(PATIENCE_S)
        super().write(fd, data, offset)

    def full_sync(self, fd: int) -> None:
        assert self.may_sync.wait(PATIENCE_S)
        super().full_sync(fd)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "READ_WAIT_S", 0.1)
    monkeypatch.setattr(spill, "WRITE_WAIT_S", 0.1)
    monkeypatch.setattr(processes, "SYNC_S", 0.1)


@asynccontextmanager
async def store(
    folder: Path, prompts: int
) -> AsyncGenerator[tuple[StoreProcess, Worker, StuckFiles]]:
    """A store that was started again: its prompts are on disk alone."""
    chosen = settings(folder=str(folder / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        for seed in range(prompts):
            await one.put(ids(512, seed))
        await one.client.flush()
    files = StuckFiles()
    async with (
        local_store(chosen, epoch=2, files=files) as (process, target),
        worker(target) as one,
    ):
        try:
            yield process, one, files
        finally:
            files.go_on()


async def test_a_late_read_is_a_miss_and_its_memory_is_used_once_it_ends(tmp_path: Path) -> None:
    async with store(tmp_path, 1) as (process, one, files):
        held = process.store.tiers.memory.arena
        files.may_read.clear()
        assert await one.read(ids(513)) == 0
        assert held.used_bytes > 0
        assert process.store.gauges()["ssd_late_reads"] == 1
        assert process.store.gauges()["ssd_is_failing"] == 1
        began_s = monotonic()
        assert await one.read(ids(513)) == 0  # nobody waits for the same once more
        assert monotonic() - began_s < AT_ONCE_S
        assert files.reading == 1
        assert held.used_bytes > 0
        files.may_read.set()
        await until(lambda: held.used_bytes == 0)
        assert not process.store.counts["corrupt"]
        assert await one.read(ids(513)) == 512
        assert process.store.gauges()["ssd_is_failing"] == 0
        await one.idle()
        process.store.check()


async def test_stuck_readers_hold_up_neither_ram_nor_each_other(tmp_path: Path) -> None:
    async with store(tmp_path, 6) as (process, one, files):
        assert await one.read(ids(513)) == 512  # in RAM now
        files.may_read.clear()
        async with asyncio.timeout(PATIENCE_S / 2):
            found = await asyncio.gather(*[one.read(ids(513, seed)) for seed in range(1, 6)])
        assert found == [0] * 5
        assert files.reading == tiers.READERS
        assert process.store.tiers.reads.is_stuck
        began_s = monotonic()
        assert await one.read(ids(513, 5)) == 0
        assert await one.read(ids(513)) == 512
        assert [type(answer) for answer in await one.put(ids(512, 9))] == [Published]
        assert monotonic() - began_s < AT_ONCE_S
        files.may_read.set()
        await until(lambda: not process.store.tiers.reads.late)
        for seed in range(1, 6):
            assert await one.read(ids(513, seed)) == 512
        await one.idle()
        process.store.check()


async def test_a_stuck_write_trips_the_breaker_and_ram_goes_on(tmp_path: Path) -> None:
    async with store(tmp_path, 1) as (process, one, files):
        files.may_write.clear()
        await one.put(ids(512, 5))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        async with asyncio.timeout(AT_ONCE_S):
            told = await one.client.flush()
        assert told is not None
        assert (told.ok, told.pending) == (False, 1)
        for seed in range(6, 9):
            assert [type(answer) for answer in await one.put(ids(512, seed))] == [Published]
        assert await one.read(ids(513, 5)) == 512
        assert await one.read(ids(513, 8)) == 512
        files.may_write.set()
        await until(lambda: process.store.counts["spilled"] == 4)
        assert process.store.gauges()["ssd_is_failing"] == 0
        told = await one.client.flush()
        assert told is not None
        assert told.ok
        process.store.check()


async def test_leases_end_and_namespaces_open_beside_a_stuck_write(tmp_path: Path) -> None:
    async with store(tmp_path, 1) as (process, one, files):
        assert await one.read(ids(513)) == 512
        files.may_write.clear()
        await one.put(ids(512, 5))
        await until(lambda: process.store.tiers.writes.is_stuck)
        lease = process.store.leases.read("", [], -1e9)
        await until(lambda: lease.id not in process.store.leases.reads)
        files.may_write.set()


async def test_a_stuck_sync_is_no_flush(tmp_path: Path) -> None:
    async with store(tmp_path, 1) as (process, one, files):
        files.may_sync.clear()
        async with asyncio.timeout(AT_ONCE_S):
            told = await one.client.flush()
        assert told is not None
        assert not told.ok
        files.may_sync.set()
        await until(lambda: not process.store.tiers.writes.is_stuck)
        told = await one.client.flush()
        assert told is not None
        assert told.ok


async def test_a_flush_answers_within_its_callers_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "WRITE_WAIT_S", PATIENCE_S)
    async with store(tmp_path, 1) as (process, one, files):
        files.may_write.clear()
        await one.put(ids(512, 5))
        async with asyncio.timeout(AT_ONCE_S):
            told = await process.flush(b"", within_s=0.1)
        assert (told.ok, told.pending) == (False, 1)
        files.may_write.set()
