"""What lies on the disk is proved in idle time, whole rounds long, and never in the way."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bramley.cachestore import admin, scrub
from bramley.cachestore.admin import Proved
from bramley.cachestore.files import Files
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.tiers import READ_TRIES
from bramley.common.errors import Overloaded
from bramley.protos.v1 import cachestore_pb2 as pb
from support.core import drop_copies
from support.failing_files import FailingFiles
from support.store import PATIENCE_S, ids, local_store, settings, until, worker


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "QUIET_S", 0.0)
    monkeypatch.setattr(scrub, "LOOK_S", 0.01)
    monkeypatch.setattr(scrub, "NOTE_S", 0.0)


def flip(file: Path) -> None:
    """Change the last byte of a payload, and nothing that the index could tell it by."""
    stat = file.stat()
    with file.open("r+b") as content:
        content.seek(-16384, os.SEEK_END)
        content.write(b"\xff" * 8)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def flip_header(file: Path) -> None:
    """Change a bit of what comes before the payload, and nothing that the index could tell."""
    stat = file.stat()
    with file.open("r+b") as content:
        content.seek(100)
        byte = content.read(1)[0]
        content.seek(100)
        content.write(bytes([byte ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def object_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kvx"), key=lambda file: file.name)


async def fill(folder: Path, prompts: int) -> list[Path]:
    """Store prompts; returns their files, in the order of their ids."""
    async with local_store(settings(folder=str(folder))) as (_, target), worker(target) as one:
        for seed in range(prompts):
            await one.put(ids(512, seed))
        await one.client.flush()
    return await asyncio.to_thread(object_files, folder)


async def test_damage_is_found_and_a_miss_before_anybody_asks(tmp_path: Path) -> None:
    files = await fill(tmp_path, 3)
    flip(files[1])
    chosen = settings(folder=str(tmp_path), scrub_bytes_s=1 << 30)
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        await until(lambda: process.store.gauges()["scrub_round_s"] > 0)
        assert process.store.counts["scrub_corrupt"] == 1
        assert process.store.counts["corrupt"] == 1
        assert not process.store.gauges()["ram_bytes"]  # proving brings nothing to RAM
        await until(lambda: process.store.gauges()["quarantine_bytes"] > 0)
        assert sorted([await one.read(ids(513, seed)) for seed in range(3)]) == [0, 512, 512]
        await one.idle()
        process.store.check()


async def test_a_damaged_header_is_damage_too(tmp_path: Path) -> None:
    files = await fill(tmp_path, 2)
    chosen = settings(folder=str(tmp_path), scrub_bytes_s=1 << 30)
    flip_header(files[0])
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        await until(lambda: process.store.gauges()["scrub_round_s"] > 0)
        assert process.store.counts["scrub_corrupt"] == 1
        assert sorted([await one.read(ids(513, seed)) for seed in range(2)]) == [0, 512]


@pytest.mark.parametrize("files_only", [True, False])
async def test_a_header_is_proved_when_an_administrator_asks(
    tmp_path: Path, files_only: bool
) -> None:
    files = await fill(tmp_path, 2)
    async with local_store(settings(folder=str(tmp_path)), epoch=2) as (process, _):
        flip_header(files[0])
        everything = process.store.tiers.catalogue.in_order()
        done = await admin.prove(process.store, everything, files_only=files_only)
        assert done.damaged == [files[0].stem]


async def test_a_round_goes_on_where_the_last_run_was(tmp_path: Path) -> None:
    files = await fill(tmp_path, 4)
    size = 2 * 32768  # of an object
    slow, fast = settings(folder=str(tmp_path), scrub_bytes_s=200_000), 1 << 30
    async with local_store(slow, epoch=2) as (process, _):
        await until(lambda: process.store.counts["scrubbed_bytes"] >= 2 * size)
    flip(files[0])  # has been proved in this round
    chosen = settings(folder=str(tmp_path), scrub_bytes_s=fast)
    async with local_store(chosen, epoch=3) as (process, _):
        await until(lambda: process.store.gauges()["scrub_round_s"] > 0)
        assert 0 < process.store.counts["scrubbed_bytes"] < 4 * size
        assert not process.store.counts["corrupt"]
        ended_s = process.store.gauges()["scrub_round_s"]
    async with local_store(chosen, epoch=4) as (process, _):
        assert process.store.gauges()["scrub_round_s"] == ended_s  # and none before tomorrow


class HeldFiles(Files):
    """Writes of payloads wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert self.go_on.wait(PATIENCE_S)
        super().write(fd, data, offset)


async def test_nothing_is_scrubbed_beside_work(tmp_path: Path) -> None:
    await fill(tmp_path, 2)
    chosen = settings(folder=str(tmp_path), scrub_bytes_s=0)
    files = HeldFiles()
    async with (
        local_store(chosen, epoch=2, files=files) as (process, target),
        worker(target) as one,
    ):
        await one.put(ids(512, 9))  # waits for the disk
        disk = process.store.tiers.disk
        assert disk is not None
        scrubber = scrub.Scrubber(process.store.tiers, disk, 1 << 30)
        looks = 0
        is_idle = process.store.tiers.is_idle

        def look(quiet_s: float) -> bool:
            nonlocal looks
            looks += 1
            return is_idle(quiet_s)

        process.store.tiers.is_idle = look
        running = asyncio.create_task(scrubber.run())
        await until(lambda: looks > 3)
        assert not process.store.counts["scrubbed_bytes"]
        files.go_on.set()
        await until(lambda: scrubber.round_s > 0)
        assert process.store.counts["scrubbed_bytes"] == 2 * 2 * 32768  # those of the round's start
        running.cancel()


@pytest.mark.parametrize("noted_s", [1e12, float("inf"), float("nan")])
async def test_a_round_that_ended_in_the_future_keeps_none_from_beginning(
    tmp_path: Path, noted_s: float
) -> None:
    await fill(tmp_path, 1)
    chosen = settings(folder=str(tmp_path), scrub_bytes_s=1 << 30)
    async with local_store(settings(folder=str(tmp_path), scrub_bytes_s=0), epoch=2) as (
        process,
        _,
    ):
        disk = process.store.tiers.disk
        assert disk is not None
        disk.note_scrub("", noted_s)
    async with local_store(chosen, epoch=3) as (process, _):
        await until(lambda: process.store.counts["scrubbed_bytes"] > 0)


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    async with local_store(settings(folder=str(tmp_path), scrub_bytes_s=0), epoch=2) as (
        process,
        _,
    ):
        assert process.store.scrubber is None
        assert process.store.gauges()["scrub_round_s"] == 0


async def test_what_cannot_be_read_is_neither_whole_nor_damaged_until_it_fails_again_and_again(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, 2)
    files = FailingFiles()
    async with (
        local_store(settings(folder=str(tmp_path)), epoch=2, files=files) as (process, target),
        worker(target) as one,
    ):
        assert one.client.link is not None
        files.fail_all("read_into", code=errno.EIO)
        told: list[tuple[int, int, int]] = []
        for _ in range(READ_TRIES + 1):
            found = await one.client.link.stub.Scrub(pb.ScrubRequest())
            told.append((found.objects, found.unreadable, found.corrupt))
        assert told == [(2, 2, 0)] * (READ_TRIES - 1) + [(2, 0, 2), (0, 0, 0)]
        assert not process.store.tiers.catalogue.entries


async def test_what_the_disk_does_not_give_for_once_is_neither_damaged_nor_given_up(
    tmp_path: Path,
) -> None:
    await fill(tmp_path, 1)
    chosen, files = settings(folder=str(tmp_path), scrub_bytes_s=0), FailingFiles()
    async with (
        local_store(chosen, epoch=2, files=files) as (process, target),
        worker(target) as one,
    ):
        for _ in range(2):
            files.fail_all("read_into", code=errno.EIO)
            for _ in range(READ_TRIES - 1):
                assert await one.read(ids(513)) == 0
            files.heal()
            assert await one.read(ids(513)) == 512
            await one.idle()
            drop_copies(process.store)
        files.fail_all("read_into", code=errno.EIO)
        disk = process.store.tiers.disk
        assert disk is not None
        scrubber = scrub.Scrubber(process.store.tiers, disk, 1 << 30)
        running = asyncio.create_task(scrubber.run())
        await until(lambda: scrubber.round_s > 0)
        running.cancel()
        files.heal()
        assert await one.read(ids(513)) == 512
        assert not process.store.counts["scrub_corrupt"]
        assert not process.store.counts["corrupt"]


async def proved(process: StoreProcess, *, files_only: bool = True) -> Proved:
    entries = process.store.tiers.catalogue.in_order()
    done = await admin.prove(process.store, entries, files_only=files_only)
    process.store.check()
    return done


async def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    files = await fill(tmp_path, 2)
    async with local_store(settings(folder=str(tmp_path)), epoch=2) as (process, _):
        files[0].unlink()
        done = await proved(process)
        assert (done.missing, done.damaged, done.unreadable) == ([files[0].stem], [], [])
        assert process.store.counts["missing_files"] == 1
        assert not process.store.counts["corrupt"]
        assert (await proved(process)).objects == 1


@pytest.mark.parametrize("spoil", [Path.unlink, flip, flip_header])
async def test_what_is_whole_in_ram_is_written_again_parents_before_children(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with (
        local_store(settings(folder=str(tmp_path))) as (process, target),
        worker(target) as one,
    ):
        for block in range(6):
            await one.put(ids((block + 1) * 256), first_block=block)
        assert (await process.flush(b"")).ok
        for file in await asyncio.to_thread(object_files, tmp_path):
            spoil(file)
        done = await proved(process)
        assert len(done.missing if spoil == Path.unlink else done.damaged) == 6
        assert (await process.flush(b"")).ok
        assert process.store.counts["rewritten"] == 6
        await one.idle()
        drop_copies(process.store)
        assert await one.read(ids(6 * 256 + 1)) == 6 * 256
        await one.idle()
        process.store.check()
    async with local_store(settings(folder=str(tmp_path)), epoch=2) as (process, _):
        assert (await proved(process)).objects == 6


async def test_a_folder_that_has_gone_costs_no_object(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    async with (
        local_store(settings(folder=str(here))) as (process, target),
        worker(target) as one,
    ):
        await one.put(ids(512, 0))
        await one.put(ids(512, 1))
        assert (await process.flush(b"")).ok
        here.rename(away)
        with pytest.raises(Overloaded, match="folder is not there"):
            await proved(process)
        assert process.store.gauges()["ssd_is_failing"]
        assert not (await process.flush(b"")).ok
        assert await one.read(ids(513, 0)) == 512  # from RAM
        await one.idle()
        drop_copies(process.store)
        assert await one.read(ids(513, 0)) == 0
        await one.put(ids(512, 2))
        assert not (await process.flush(b"")).ok
        away.rename(here)
        assert [await one.read(ids(513, seed)) for seed in range(3)] == [512, 512, 512]
        assert process.store.gauges()["objects"] == 3
        assert not process.store.counts["corrupt"]
        assert not process.store.counts["failed"]
        await one.idle()
