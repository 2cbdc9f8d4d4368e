"""A full or sick disk: the RAM tier goes on, nothing is refused in silence, all ends well."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore.disk import Disk, DiskFull
from bramley.cachestore.exchange import Published, Refusal
from bramley.cachestore.files import FULL, Files
from bramley.cachestore.objects import StoredObject
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.spill import WRITE_TRIES
from support.core import CoreProcess, drop_copies, put, read
from support.failing_files import FailingFiles
from support.store import KV, PATIENCE_S, identity, ids, local_store, settings, until, worker


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
    kind = DiskFull if code in FULL else OSError
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


async def test_what_a_sick_disk_refused_is_tried_again_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        sick = sickened(process, monkeypatch, errno.EIO)
        await one.put(ids(512))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        assert sick.tries == 2  # once more at once, then later
        assert not process.store.counts["evicted_from_disk"]
        recovered(process, sick)
        await one.put(ids(1024), first_block=2)
        await until(lambda: process.store.counts["spilled"] == 2)
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        process.store.check()


async def test_what_a_sick_disk_never_takes_is_counted_and_kept_in_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        sick = sickened(process, monkeypatch, errno.EIO)
        error = sick.error
        await one.put(ids(512))
        for tries in range(1, WRITE_TRIES + 1):
            await until(lambda tries=tries: process.store.counts["breaker_trips"] == tries)
            recovered(process, sick)
            sick.error = error
        await until(lambda: process.store.counts["failed"] == 1)
        recovered(process, sick)
        await one.put(ids(1024), first_block=2)  # a child of what is not on disk
        await until(lambda: process.store.counts["failed"] == 2)
        assert await one.read(ids(1100)) == 1024
        flushed = await one.client.flush()
        assert flushed is not None
        assert (flushed.ok, flushed.failed, flushed.missing) == (False, 2, 2)
        assert not list((tmp_path / "disk").rglob("*.kvx"))
        await one.idle()
        process.store.check()


@pytest.mark.parametrize("code", sorted(FULL))
async def test_a_full_disk_makes_room_once_and_tries_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        for seed in range(10):
            await one.put(ids(512, seed))
        await one.client.flush()
        sick = sickened(process, monkeypatch, code)
        await one.put(ids(512, 10))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        assert sick.tries == 2
        assert process.store.counts["evicted_from_disk"] == 2  # a fifth of what is there
        assert process.store.gauges()["breaker_is_full"] == 1
        found = [await one.read(ids(513, seed)) for seed in range(11)]
        assert found == [0, 0, *[512] * 9]
        recovered(process, sick)
        await until(lambda: process.store.counts["spilled"] == 11)
        assert process.store.gauges()["breaker_is_full"] == 0
        process.store.check()


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "DISK_FULL"), (errno.EIO, "BREAKER_OPEN")]
)
async def test_a_refusal_tells_a_full_disk_from_a_sick_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), ram_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        sickened(process, monkeypatch, code)
        leases: list[object] = []
        for seed in range(3):
            # Until it is leased it may leave again, to make room for the next.
            while (match := await one.match(ids(513, seed))) is None:
                await one.put(ids(512, seed), part_bytes=600_000)
            leases.append(await one.client.acquire(match))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        (refusal,) = await one.put(ids(512, 9), part_bytes=600_000)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == reason
        assert refusal.retry_after_s is not None
        assert 0.0 < refusal.retry_after_s <= 5.0
        assert all(leases)


class SmallVolume(Files):
    """A volume that other people fill."""

    def __init__(self) -> None:
        self.free = 1 << 40

    def room(self, path: Path) -> tuple[int, int]:
        return self.free, 1 << 40

    def unlink(self, path: Path) -> None:
        if path.suffix == ".kvx":
            self.free += self.stat(path).st_size
        super().unlink(path)


async def test_the_last_of_a_volume_is_left_to_others(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), keep_free_bytes=1 << 30)
    files = SmallVolume()
    async with local_store(chosen, files=files) as (process, target), worker(target) as one:
        await one.put(ids(512))
        assert (await one.client.flush()).ok  # pyright: ignore[reportOptionalMemberAccess]
        files.free = (1 << 30) + 80_000
        await one.put(ids(512, 1))  # the older one leaves for it
        await until(lambda: process.store.counts["spilled"] == 2)
        assert process.store.counts["evicted_from_disk"] == 1
        files.free = 0
        await one.put(ids(512, 2))
        await until(lambda: process.store.counts["breaker_trips"] == 1)
        assert process.store.gauges()["breaker_is_full"] == 1
        assert process.store.counts["evicted_from_disk"] == 1  # in vain, it would be
        for seed in (1, 2):
            assert await one.read(ids(513, seed)) == 512


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
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok  # all is there after all
        process.store.check()


async def test_files_that_cannot_be_removed_do_not_cost_all_the_others(tmp_path: Path) -> None:
    files = FailingFiles()
    process = CoreProcess(tmp_path / "disk", files, 1, disk_bytes=3 << 20, ram_bytes=8 << 20)
    store = await process.start()
    root = store.open_namespace(identity(), [KV], 0.0)
    for seed in range(30):
        assert await put(store, root, ids(512, seed)) == "ok"
    await until(lambda: not store.tiers.pending)
    files.fail_all("unlink", code=errno.EROFS)
    seed = 30
    while not store.counts["breaker_trips"]:  # there is no more room without a removal
        assert await put(store, root, ids(512, seed)) == "ok"
        await until(lambda: not store.tiers.pending)
        seed += 1
    kept, trips = len(store.tiers.catalogue.disk), store.counts["breaker_trips"]
    drop_copies(store)
    found = [await read(store, root, ids(513, each)) for each in range(seed)]
    await process.stop()
    assert kept == store.counts["spilled"] - trips  # one a try
    assert trips <= 3
    assert found.count(512) >= kept > 30


class HeldRoom(Files):
    """Says how much room there is only when it may."""

    def __init__(self) -> None:
        self.may_say = threading.Event()
        self.may_say.set()

    def room(self, path: Path) -> tuple[int, int]:
        assert self.may_say.wait(PATIENCE_S)
        return super().room(path)


async def test_an_object_found_damaged_while_room_is_made_for_it_stops_no_other(
    tmp_path: Path,
) -> None:
    files = HeldRoom()
    process = CoreProcess(tmp_path / "disk", files, 1, ram_bytes=8 << 20)
    store = await process.start()
    root = store.open_namespace(identity(), [KV], 0.0)
    files.may_say.clear()
    await put(store, root, ids(512, 1))
    (damaged,) = store.tiers.pending.values()
    await until(lambda: damaged.holds > 0)
    store.tiers.quarantine(damaged)
    files.may_say.set()
    await put(store, root, ids(512, 2))
    await until(lambda: store.counts["spilled"] == 1)
    assert [await read(store, root, ids(513, seed)) for seed in (1, 2)] == [0, 512]
    store.check()
    await process.stop()
