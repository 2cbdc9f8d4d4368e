"""Export and Import when something breaks: disks, callers that leave, files that change, a kill."""

import asyncio
import errno
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from typing_extensions import override

from bramley.cachestore import admin
from bramley.cachestore.exchange import Published, Refusal
from bramley.cachestore.files import Files, on_disk
from bramley.cachestore.objects import padded
from bramley.cachestore.pack import pack
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.store import Store
from bramley.cachestore.unpack import unpack
from bramley.common.errors import BramleyError, NotLoaded
from bramley.common.rpc import open_channel
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub
from support.archives import export_to, import_from
from support.failing_files import FailingFiles
from support.store import (
    PART_BYTES,
    StoreChild,
    Worker,
    ids,
    local_store,
    settings,
    store_child,
    until,
    worker,
)

BLOCKS = 6
OBJECT = padded(PART_BYTES)  # bytes in RAM
ANSWERS = 10  # beside an import, at most: what they write keeps the disk from it


@asynccontextmanager
async def filled(
    folder: Path | None = None, ram_bytes: int = 64 << 20
) -> AsyncGenerator[tuple[StoreProcess, Worker]]:
    """A store with one prompt of BLOCKS objects."""
    chosen = settings(folder="" if folder is None else str(folder), ram_bytes=ram_bytes)
    async with local_store(chosen) as (process, target), worker(target) as one:
        for block in range(BLOCKS):
            await one.put(ids((block + 1) * 256), first_block=block)
            if folder is not None:
                await one.client.flush()
        yield process, one
        check_nothing_is_held(process.store)


def check_nothing_is_held(store: Store) -> None:
    assert not store.leases.reads
    assert not store.leases.writes
    assert not any(entry.kept or entry.holds for entry in store.tiers.catalogue.entries.values())
    store.check()


async def packed(store: Store, path: Path, files: Files) -> int:
    everything = list(store.tiers.catalogue.entries)
    count = 0
    async with aclosing(pack(store, everything, path, files)) as steps:
        async for at in steps:
            count = at.objects
    return count


async def unpacked(store: Store, path: Path, files: Files) -> None:
    async with aclosing(unpack(store, path, files)) as steps:
        async for _ in steps:
            pass


class NamingFiles(FailingFiles):
    """A file system on which each file has a name."""

    @override
    def open_unnamed(self, folder: Path) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    async with filled() as (process, _):
        assert await packed(process.store, tmp_path / "all.tar", Files()) == BLOCKS
    return tmp_path / "all.tar"


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "DISK_FULL"), (errno.EIO, "FILE_UNUSABLE")]
)
@pytest.mark.parametrize("kind", [FailingFiles, NamingFiles])
async def test_an_export_that_fails_at_any_call_leaves_nothing_behind(
    tmp_path: Path, code: int, reason: str, kind: type[FailingFiles]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "all.tar"
    files = kind()
    async with filled() as (process, _):
        await packed(process.store, path, files)
        calls = files.made.copy()
        path.unlink()
        cleaning = calls.index("close")  # and unlinking the other name come last
        for number in range(cleaning):
            files.fail_number(number, code)
            with pytest.raises(BramleyError) as caught:
                await packed(process.store, path, files)
            assert caught.value.reason == reason, calls[number]
            check_nothing_is_held(process.store)
            left = [each.name for each in folder.iterdir()]
            named = calls[number] == "fsync_dir"
            assert left == (["all.tar"] if named else []), calls[number]
            path.unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
async def test_an_export_has_no_name_before_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    async with filled() as (process, _):
        everything = list(process.store.tiers.catalogue.entries)
        async with aclosing(pack(process.store, everything, folder / "a.tar", Files())) as at:
            await anext(at)
            assert not list(folder.iterdir())
            async for _ in at:
                pass
    assert [path.name for path in folder.iterdir()] == ["a.tar"]


async def test_an_export_where_each_file_has_a_name_is_hidden_until_it_is_whole(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    async with filled() as (process, _):
        everything = list(process.store.tiers.catalogue.entries)
        async with aclosing(pack(process.store, everything, folder / "a.tar", NamingFiles())) as at:
            await anext(at)
            assert [path.suffix for path in folder.iterdir()] == [".export"]
            async for _ in at:
                pass
        assert [path.name for path in folder.iterdir()] == ["a.tar"]
        await unpacked(process.store, folder / "a.tar", Files())


async def test_an_export_whose_caller_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    async with filled() as (process, one), open_channel(process.addresses["socket"]) as channel:
        everything = list(process.store.tiers.catalogue.entries)
        request = pb.ExportRequest(path=str(folder / "all.tar"), object_ids=everything)
        call = CacheStoreServiceStub(channel).Export(request)
        async for _ in call:
            call.cancel()
            break
        await one.idle()
        await until(lambda: not process.store.leases.reads and not list(folder.glob(".*")))
        assert [each.name for each in folder.iterdir()] in ([], ["all.tar"])


async def test_what_waits_to_be_exported_leaves_ram_for_others_but_not_the_disk(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path / "disk", ram_bytes=(BLOCKS + 1) * OBJECT) as (process, one):
        store, tiers = process.store, process.store.tiers
        everything = list(tiers.catalogue.entries)
        async with aclosing(pack(store, everything, tmp_path / "all.tar", Files())) as steps:
            await anext(steps)
            (answer,) = await one.put(ids((BLOCKS - 1) * 256, seed=9))
            assert isinstance(answer, Published)
            (other,) = admin.known(store, [answer.object_id])
            await one.client.flush()
            assert (
                tiers.order.disk_victim(lambda one: one is not other and tiers.is_free(one)) is None
            )
            assert [at.objects async for at in steps] == [*range(2, BLOCKS + 1)]
        assert (
            tiers.order.disk_victim(lambda one: one is not other and tiers.is_free(one)) is not None
        )


async def test_what_waits_to_be_exported_and_is_in_ram_alone_stays(tmp_path: Path) -> None:
    async with filled(ram_bytes=(BLOCKS + 1) * OBJECT) as (process, one):
        entries = list(process.store.tiers.catalogue.entries.values())
        everything = [entry.id for entry in entries]
        path = tmp_path / "all.tar"
        async with aclosing(pack(process.store, everything, path, Files())) as steps:
            await anext(steps)
            assert await one.put(ids((BLOCKS - 1) * 256, seed=9)) == [Refusal("RAM_FULL", 1.0)]
            assert (await admin.evict(process.store, entries, 0.0)).held == BLOCKS - 1
            assert [at.objects async for at in steps] == [*range(2, BLOCKS + 1)]
        assert (await admin.evict(process.store, entries, 0.0)).evicted == BLOCKS


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_damaged_object_is_set_aside_and_not_exported(
    tmp_path: Path, on_disk: bool
) -> None:
    path = tmp_path / "all.tar"
    async with filled(tmp_path / "disk" if on_disk else None) as (process, _):
        tiers = process.store.tiers
        entry = list(tiers.catalogue.entries.values())[-1]
        if on_disk:
            file = next((tmp_path / "disk").rglob(f"{entry.id}.kvx"))
            content = bytearray(file.read_bytes())
            content[-16_384] ^= 1
            file.write_bytes(content)
            tiers.drop_from_ram(entry)
        else:
            assert entry.run is not None
            tiers.memory.view(entry.run)[5] ^= 1
        with pytest.raises(NotLoaded) as caught:
            await packed(process.store, path, Files())
        assert caught.value.reason == "OBJECT_LOST"
        assert entry.id not in tiers.catalogue.entries
        assert not path.exists()
        assert await packed(process.store, path, Files()) == BLOCKS - 1


async def test_an_import_that_cannot_read_at_any_call_keeps_whole_prefixes(
    archive: Path, tmp_path: Path
) -> None:
    files = FailingFiles()
    async with local_store(settings()) as (process, _):
        await unpacked(process.store, archive, files)
        calls = files.made.copy()
    for number in range(len(calls) - 1):  # the last one closes the file
        async with local_store(settings()) as (process, target), worker(target) as one:
            files.fail_number(number, errno.EIO)
            with pytest.raises(BramleyError) as caught:
                await unpacked(process.store, archive, files)
            assert caught.value.reason == "FILE_UNUSABLE"
            check_nothing_is_held(process.store)
            files.heal()
            found = len(process.store.tiers.catalogue.entries)
            assert await one.read(ids(BLOCKS * 256 + 1)) == found * 256
            await unpacked(process.store, archive, files)
            assert await one.read(ids(BLOCKS * 256 + 1)) == BLOCKS * 256


class ChangingFiles(Files):
    """Changes what it reads once it has read that before."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    @override
    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        """Read; of a part that was read before, the first byte is another one."""
        read = super().read_into(fd, target, offset)
        if any(begin <= offset < end for begin, end in self._seen):
            target[0] ^= 1
        self._seen.add((offset, offset + read))
        return read


async def test_a_file_that_changes_after_it_was_proved_is_found_out(archive: Path) -> None:
    async with local_store(settings()) as (process, _):
        with pytest.raises(BramleyError, match="changed while it was read"):
            await unpacked(process.store, archive, ChangingFiles())
        assert not process.store.tiers.catalogue.entries
        check_nothing_is_held(process.store)


@pytest.mark.parametrize("short_of", ["disk_bytes", "keep_free_bytes"])
async def test_an_import_that_no_eviction_makes_room_for_is_refused_before_any(
    tmp_path: Path, archive: Path, short_of: str
) -> None:
    folder = tmp_path / "small"
    async with local_store(settings(folder=str(folder))) as (_, target), worker(target) as one:
        for seed in range(1, 5):
            await one.put(ids(512, seed))
        await one.client.flush()
    few = {"disk_bytes": on_disk(Files().stat(archive)), "keep_free_bytes": 1 << 61}
    chosen = settings(folder=str(folder), **{short_of: few[short_of]})
    async with local_store(chosen, epoch=2) as (process, _):
        with pytest.raises(BramleyError, match="even if all else there left") as caught:
            await unpacked(process.store, archive, Files())
        assert caught.value.reason == "NO_ROOM"
        assert len(process.store.tiers.catalogue.disk) == 4


async def import_and_kill(child: StoreChild, archive: Path) -> None:
    """Kill a store that has taken in three objects."""
    async with open_channel(child.target) as channel:
        request = pb.ImportRequest(path=str(archive))
        async for at in CacheStoreServiceStub(channel).Import(request):
            if at.objects == 3:
                await child.kill()


async def test_a_store_killed_in_the_middle_of_an_import_has_whole_prefixes_and_goes_on(
    archive: Path, tmp_path: Path
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with store_child(tmp_path) as child:
        await child.start(chosen)
        with pytest.raises(grpc.aio.AioRpcError):
            await import_and_kill(child, archive)
        await child.start(chosen)
        async with worker(child.target) as one, open_channel(child.target) as channel:
            stub = CacheStoreServiceStub(channel)
            found = await one.read(ids(BLOCKS * 256 + 1))
            assert found >= 3 * 256  # what was told of is written
            done = await import_from(stub, archive)
            assert done.skipped == found // 256
            assert await one.read(ids(BLOCKS * 256 + 1)) == BLOCKS * 256
            told = await export_to(stub, tmp_path / "again.tar")
            assert (told.objects, told.left_out) == (BLOCKS, 0)
        await child.stop()


async def test_requests_are_served_while_an_import_waits_for_the_disk(
    archive: Path, tmp_path: Path
) -> None:
    async with local_store(settings(folder=str(tmp_path / "disk"))) as (process, target):
        async with worker(target) as one, open_channel(target) as channel:
            importing = asyncio.create_task(import_from(CacheStoreServiceStub(channel), archive))
            answered = 0
            while not importing.done() and answered < ANSWERS:
                await one.put(ids(256, seed=100 + answered))
                answered += 1
            assert (await importing).objects == BLOCKS
            assert answered >= 2
            await one.client.flush()
        await until(lambda: not process.store.leases.reads)
        check_nothing_is_held(process.store)
