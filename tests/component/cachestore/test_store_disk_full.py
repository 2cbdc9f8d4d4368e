"""A full or sick disk: the RAM tier goes on, nothing is refused in silence, all ends well."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore.disk import Disk, DiskFull
from bramley.cachestore.exchange import Published, Refusal
from bramley.cachestore.objects import StoredObject
from bramley.cachestore.process import StoreProcess
from support.store import PATIENCE_S, ids, local_store, settings, until, worker


class Sick:
    """Stands before a disk's ``write``, and fails while it is told to."""

    def __init__(self, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.tries = 0
        self._write = disk.write
        monkeypatch.setattr(disk, "write", self.write)

    def write(self, stored: StoredObject, payload: memoryview) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self._write(stored, payload)


def sickened(process: StoreProcess, monkeypatch: pytest.MonkeyPatch, code: int) -> Sick:
    disk = process.store.tiers.disk
    assert disk is not None
    sick = Sick(disk, monkeypatch)
    kind = DiskFull if code == errno.ENOSPC else OSError
    sick.error = kind(code, os.strerror(code))
    return sick


def recovered(process: StoreProcess, sick: Sick) -> None:
    """Let the disk work, and the time of waiting pass."""
    sick.error = None
    assert process.store.spiller is not None
    breaker: Any = process.store.spiller.breaker
    breaker._until_s = 0.0
    process.store.spiller.wake()


async def test_a_full_disk_stops_nothing_and_what_waited_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        sick = sickened(process, monkeypatch, errno.ENOSPC)
        await one.put(ids(512))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        for seed in range(1, 4):
            for answer in await one.put(ids(512, seed)):
                assert isinstance(answer, Published)
        assert await one.read(ids(513)) == 512
        flushed = await one.client.flush()
        assert flushed is not None
        assert not flushed.ok
        assert flushed.pending == 4
        assert sick.tries == 1  # it is left alone
        recovered(process, sick)
        await until(lambda: process.store.counts["spilled"] == 4)
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        await one.idle()
        process.store.check()


async def test_a_full_disk_makes_the_ram_tier_forget_the_oldest_and_count_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), ram_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        sickened(process, monkeypatch, errno.ENOSPC)
        await one.put(ids(512), part_bytes=500_000)
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        for seed in range(1, 9):
            for answer in await one.put(ids(512, seed), part_bytes=500_000):
                assert isinstance(answer, Published)
        assert await one.read(ids(513, 8)) == 512
        assert process.store.counts["failed"] >= 5
        await one.idle()
        process.store.check()


async def test_what_a_sick_disk_refused_is_counted_and_kept_in_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        sick = sickened(process, monkeypatch, errno.EIO)
        await one.put(ids(512))
        await until(lambda: process.store.counts["failed"] == 1)
        recovered(process, sick)
        await one.put(ids(1024), first_block=2)  # a child of what is not on disk
        await until(lambda: process.store.counts["failed"] == 2)
        assert await one.read(ids(1100)) == 1024
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.failed == 2
        assert not flushed.ok
        assert not list((tmp_path / "disk").rglob("*.kvx"))
        await one.idle()
        process.store.check()


async def test_too_much_for_the_disk_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), write_queue_bytes=100_000)
    async with local_store(chosen) as (process, target), worker(target) as one:
        disk = process.store.tiers.disk
        assert disk is not None
        slow, write = threading.Event(), disk.write

        def wait_and_write(stored: StoredObject, payload: memoryview) -> None:
            assert slow.wait(PATIENCE_S)
            write(stored, payload)

        monkeypatch.setattr(disk, "write", wait_and_write)
        (first,) = await one.put(ids(512))
        assert isinstance(first, Published)
        (second,) = await one.put(ids(512, 1))
        assert second == Refusal("QUEUE_FULL", retry_after_s=1.0)
        slow.set()
        flushed = await one.client.flush()
        assert flushed is not None
        assert (flushed.pending, flushed.refused, flushed.ok) == (0, 1, False)
        (second,) = await one.put(ids(512, 1))
        assert isinstance(second, Published)
        process.store.check()
