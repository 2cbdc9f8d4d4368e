"""Export and Import: what comes out of one store is matched in another, and nothing else is."""

import os
import tarfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
import xxhash

from bramley.cachestore.matching import Group
from bramley.cachestore.objects import Part
from bramley.cachestore.process import StoreProcess
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub
from support.archives import (
    ROOT,
    Member,
    export_to,
    forged,
    import_from,
    import_refused,
    put_together,
    stored_object,
    take_apart,
    with_manifest,
)
from support.store import KV, ids, local_store, settings, until, worker

if TYPE_CHECKING:
    from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceAsyncStub

STATE = Group("state", required=True, sliceable=False)


@asynccontextmanager
async def store(
    folder: Path | None = None, **values: object
) -> "AsyncGenerator[tuple[StoreProcess, str, CacheStoreServiceAsyncStub]]":
    """A store, on the disk too if it is given a folder: it, its target, and a stub."""
    chosen = settings(folder="" if folder is None else str(folder), **values)
    async with local_store(chosen) as (process, target), open_channel(target) as channel:
        yield process, target, CacheStoreServiceStub(channel)
        leases = process.store.leases
        await until(lambda: not leases.reads and not leases.writes)
        process.store.check()


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    """The file of a prompt of 600 tokens, in three objects: two extents and a tail."""
    path = tmp_path / "prompt.tar"
    async with store() as (_, target, stub), worker(target) as one:
        await one.put(ids(256))
        await one.put(ids(512), first_block=1)
        await one.put(ids(600), first_block=2)
        await export_to(stub, path)
    return path


async def object_ids(stub: "CacheStoreServiceAsyncStub") -> list[str]:
    return [one.object_id for one in (await stub.List(pb.ListRequest())).objects]


# What comes back


@pytest.mark.parametrize("to_disk", [False, True])
@pytest.mark.parametrize("from_disk", [False, True])
async def test_what_was_exported_is_restored_byte_for_byte_from_an_empty_store(
    tmp_path: Path, from_disk: bool, to_disk: bool
) -> None:
    path = tmp_path / "all.tar"
    source = tmp_path / "source" if from_disk else None
    async with store(source) as (_, target, stub), worker(target, groups=[KV, STATE]) as one:
        for seed in (1, 2):
            await one.put(ids(700, seed))
            await one.put_state(ids(600, seed), "state", session_key="talk")
        await one.client.flush()
        told = await export_to(stub, path)
        count = len(await object_ids(stub))
    assert (told.objects, told.objects_total, told.left_out) == (count, count, 0)
    assert told.bytes == told.bytes_total > 0
    into = tmp_path / "into" if to_disk else None
    async with store(into) as (process, target, stub):
        done = await import_from(stub, path)
        assert (done.objects, done.skipped) == (count, 0)
        assert done.held == (0 if to_disk else count)
        assert done.bytes_proved == done.bytes_total == path.stat().st_size
        async with worker(target, groups=[KV, STATE]) as one:
            assert await one.read(ids(701, 1)) == await one.read(ids(701, 2)) == 600
            said = await stub.Recall(pb.RecallRequest(root=one.root, session_key="talk", limit=9))
            assert {each.token_ids_le for each in said.sequences} == {ids(600, 1), ids(600, 2)}
        assert process.store.gauges()["pending"] == 0 or not to_disk


async def test_an_export_that_was_restarted_over_comes_from_the_disk_and_knows_its_namespace(
    tmp_path: Path,
) -> None:
    path = tmp_path / "later.tar"
    async with store(tmp_path / "disk") as (_, target, _stub), worker(target) as one:
        await one.put(ids(600), session_key="talk")
        await one.client.flush()
    async with store(tmp_path / "disk") as (_, _, stub):  # no worker has opened it
        told = await export_to(stub, path)
        assert (told.objects, told.left_out) == (2, 0)
    async with store() as (_, target, stub):
        await import_from(stub, path)
        async with worker(target) as one:
            assert await one.read(ids(601)) == 600


async def test_one_object_brings_what_it_follows_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "one.tar"
    async with store() as (_, target, stub), worker(target) as one:
        await one.put(ids(256))
        await one.put(ids(512), first_block=1)
        await one.put(ids(512, seed=9))
        deep = max((await stub.List(pb.ListRequest())).objects, key=lambda each: each.first_token)
        told = await export_to(stub, path, [deep.object_id])
        assert told.objects == 2
    async with store() as (_, target, stub):
        await import_from(stub, path)
        async with worker(target) as one:
            assert await one.read(ids(513)) == 512
            assert await one.matched(ids(513, seed=9)) == 0


async def test_a_state_brings_its_blocks_and_blocks_bring_their_state(tmp_path: Path) -> None:
    async with store() as (_, target, stub), worker(target, groups=[KV, STATE]) as one:
        await one.put(ids(600))
        await one.put_state(ids(550), "state")
        listed = (await stub.List(pb.ListRequest())).objects
        for each in listed:
            if each.tokens == 512:
                continue  # no state is kept so early, so it is of no use alone
            path = tmp_path / f"{each.object_id}.tar"
            await export_to(stub, path, [each.object_id])
            async with store() as (_, other, into), worker(other, groups=[KV, STATE]) as two:
                await import_from(into, path)
                assert await two.read(ids(601)) == 550, each


async def test_what_cannot_be_used_alone_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    async with store() as (_, target, stub), worker(target, groups=[KV, STATE]) as one:
        await one.put(ids(512))  # without a state
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await export_to(stub, path)
        assert RemoteError(caught.value).reason == "NOTHING_TO_EXPORT"
        assert not path.exists()
        await one.put(ids(512, seed=1))
        await one.put_state(ids(512, seed=1), "state")
        told = await export_to(stub, path, [*await object_ids(stub), "00"])
        assert (told.objects, told.left_out) == (2, 2)


async def test_what_is_there_already_is_skipped(tmp_path: Path, archive: Path) -> None:
    async with store(tmp_path / "disk") as (_, target, stub), worker(target) as one:
        await one.put(ids(512))  # in one object
        done = await import_from(stub, archive)
        assert (done.objects, done.skipped) == (1, 2)
        again = await import_from(stub, archive)
        assert (again.objects, again.bytes, again.skipped) == (0, 0, 3)
        assert await one.read(ids(601)) == 600


def test_an_export_is_a_tar_that_names_what_it_holds(archive: Path) -> None:
    assert archive.stat().st_mode & 0o777 == 0o600
    members = manifest, *files = take_apart(archive)
    assert put_together(members) == archive.read_bytes()  # or what follows would prove nothing
    told = msgspec.json.decode(manifest.content)
    assert manifest.name == "manifest.json"
    assert told["namespaces"][0]["identity"]["weights_digest"] == "w"
    assert [one["name"] for one in told["files"]] == [one.name for one in files]
    assert [one["tokens"] for one in told["files"]] == [256, 256, 88]


async def test_an_import_that_is_broken_off_leaves_whole_prefixes_and_goes_on_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "long.tar"
    async with store() as (_, target, stub), worker(target) as one:
        for block in range(12):
            await one.put(ids((block + 1) * 256), first_block=block)
        await export_to(stub, path)
    async with store(tmp_path / "into") as (process, target, stub):
        call = stub.Import(pb.ImportRequest(path=str(path)))
        async for at in call:
            if at.objects == 5:
                call.cancel()
                break
        async with worker(target) as one:
            stats = await one.idle()
            found = await one.read(ids(12 * 256 + 1))
            assert 5 * 256 <= found < 12 * 256
            assert found == stats["objects"] * 256
            done = await import_from(stub, path)
            assert (done.skipped, done.objects) == (found // 256, 12 - found // 256)
            assert await one.read(ids(12 * 256 + 1)) == 12 * 256
        process.store.check()


async def test_an_import_larger_than_the_tier_is_refused_with_both_numbers(archive: Path) -> None:
    async with store(ram_bytes=1 << 16) as (process, _, stub):
        error = await import_refused(stub, archive)
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "NO_ROOM")
        assert "65536" in error.message
        assert "store.ram_bytes" in error.message
        assert process.store.gauges()["objects"] == 0


async def test_an_import_makes_room_for_itself_as_any_worker_does(archive: Path) -> None:
    async with store(ram_bytes=1 << 20) as (process, target, stub), worker(target) as one:
        for seed in range(1, 20):
            await one.put(ids(512, seed))
        assert process.store.gauges()["objects"] < 19  # it is full
        assert (await import_from(stub, archive)).objects == 3
        assert await one.read(ids(601)) == 600


async def test_groups_that_differ_from_the_worker_s_are_refused(archive: Path) -> None:
    async with store() as (_, target, stub), worker(target, groups=[KV, STATE]):
        error = await import_refused(stub, archive)
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "GROUPS_DIFFER")


# The paths


async def test_an_export_replaces_no_file_and_leaves_none_behind(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    async with store() as (_, target, stub), worker(target) as one:
        await one.put(ids(256))
        for path, code in (
            (taken, "ALREADY_EXISTS"),
            (tmp_path, "ALREADY_EXISTS"),
            (Path("relative"), "INVALID_ARGUMENT"),
            (tmp_path / "nowhere" / "a.tar", "INVALID_ARGUMENT"),
            (taken / "a.tar", "INVALID_ARGUMENT"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await export_to(stub, path)
            error = RemoteError(caught.value)
            assert error.code == code, path
            assert error.message.startswith("path: "), error.message
        call = stub.Export(pb.ExportRequest(path=str(tmp_path / "cut"), object_ids=["0"]))
        call.cancel()
        await one.idle()
    assert os.listdir(tmp_path) == ["taken"]
    assert taken.read_text() == "mine"


async def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with store() as (_, _, stub):
        for path, words in (
            (pipe, "no plain file"),
            (tmp_path, "no plain file"),
            (tmp_path / "gone", "No such file"),
            (Path("relative"), "not absolute"),
        ):
            error = await import_refused(stub, path)
            assert (error.code, error.field) == ("INVALID_ARGUMENT", "path")
            assert words in error.message


# What is refused


def text_of(members: list[Member]) -> dict[str, Any]:
    return msgspec.json.decode(members[0].content)


def cut(members: list[Member]) -> bytes:
    return put_together(members)[:-20_000]


def empty(members: list[Member]) -> bytes:
    return b""


def longer(members: list[Member]) -> bytes:
    return put_together(members) + bytes(10_240)


def something_at_the_end(members: list[Member]) -> bytes:
    return put_together(members)[:-1] + b"x"


def flipped(at: Callable[[bytes], int]) -> Callable[[list[Member]], bytes]:
    def flip(members: list[Member]) -> bytes:
        content = bytearray(members[2].content)
        content[at(members[2].content)] ^= 1
        return put_together([*members[:2], Member(members[2].name, bytes(content)), *members[3:]])

    return flip


def member_is(**fields: Any) -> Callable[[list[Member]], bytes]:
    def change(members: list[Member]) -> bytes:
        changed = Member(**{**vars(members[2]), **fields})
        return put_together([*members[:2], changed, *members[3:]])

    return change


def one_more(name: str) -> Callable[[list[Member]], bytes]:
    """An object's place is taken by a second one of a name; sizes are as they were."""

    def add(members: list[Member]) -> bytes:
        name_of = members[1].name if name == "twice" else name
        return put_together([*members[:2], Member(name_of, members[2].content), *members[3:]])

    return add


def turned_round(members: list[Member]) -> bytes:
    return put_together([members[0], *reversed(members[1:])])


def manifest_last(members: list[Member]) -> bytes:
    return put_together([*members[1:], members[0]])


def manifest(**fields: object) -> Callable[[list[Member]], bytes]:
    return lambda members: with_manifest(members, lambda told: told.update(fields))


def record(**fields: object) -> Callable[[list[Member]], bytes]:
    def change(told: dict[str, Any]) -> None:
        told["files"][1].update(fields)

    return lambda members: with_manifest(members, change)


def record_twice(members: list[Member]) -> bytes:
    def change(told: dict[str, Any]) -> None:
        told["files"][1] = told["files"][0]

    return with_manifest(members, change)


def another_identity(members: list[Member]) -> bytes:
    def change(told: dict[str, Any]) -> None:
        told["namespaces"][0]["identity"]["weights_digest"] = "x"

    return with_manifest(members, change)


def manifest_of_words(members: list[Member]) -> bytes:
    text = b"not JSON".ljust(len(members[0].content))
    return put_together([Member(members[0].name, text), *members[1:]])


DAMAGED, UNSAFE = "ARTIFACT_DAMAGED", "ARTIFACT_UNSAFE"
NEWER, FOREIGN = "ARTIFACT_NEWER", "ARTIFACT_FOREIGN"


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (empty, DAMAGED, "cut short"),
        (cut, DAMAGED, "cut short"),
        (longer, DAMAGED, "goes on after its end"),
        (something_at_the_end, UNSAFE, "follows its last object"),
        (flipped(lambda _: 0), DAMAGED, "does not match its sum"),
        (flipped(lambda content: 200), DAMAGED, "does not match its sum"),
        (flipped(lambda content: len(content) - 1), DAMAGED, "does not match its sum"),
        (member_is(kind=tarfile.SYMTYPE, link="/etc/passwd"), UNSAFE, "is a link"),
        (member_is(kind=tarfile.LNKTYPE, link="manifest.json"), UNSAFE, "is a link"),
        (member_is(kind=tarfile.CHRTYPE), UNSAFE, "is a device"),
        (member_is(kind=tarfile.BLKTYPE), UNSAFE, "is a device"),
        (member_is(kind=tarfile.FIFOTYPE), UNSAFE, "is a pipe"),
        (member_is(kind=tarfile.DIRTYPE), UNSAFE, "is a folder"),
        (member_is(kind=tarfile.GNUTYPE_SPARSE), UNSAFE, "is a sparse file"),
        (member_is(kind=tarfile.XHDTYPE), UNSAFE, "of a kind that is not used"),
        (member_is(name="objects/../../evil.kvx"), UNSAFE, "leads out of it"),
        (member_is(name="/etc/evil.kvx"), UNSAFE, "leads out of it"),
        (member_is(size=1 << 50), DAMAGED, "by the manifest"),
        (one_more("twice"), UNSAFE, "twice"),
        (one_more("objects/00.kvx"), UNSAFE, "where the manifest has"),
        (turned_round, UNSAFE, "where the manifest has"),
        (manifest_last, FOREIGN, "does not begin with a manifest"),
        (manifest_of_words, DAMAGED, "cannot be read"),
        (manifest(format="other"), FOREIGN, "another program's"),
        (manifest(version=-1), DAMAGED, "is wrong"),
        (manifest(reader=-1), DAMAGED, "cannot be read"),
        (manifest(reader=1 << 70), DAMAGED, "cannot be read"),
        (manifest(reader=2), NEWER, "newer than 1"),
        (manifest(files=[]), DAMAGED, "no object"),
        (manifest(files="many"), DAMAGED, "is wrong"),
        (manifest(namespaces=[]), DAMAGED, "does not tell the namespace"),
        (record(name="objects/../x.kvx"), UNSAFE, "no object's name"),
        (record(name="/x.kvx"), UNSAFE, "no object's name"),
        (record(sha256="0" * 64), DAMAGED, "does not match its sum"),
        (record(sha256="0"), DAMAGED, "size and sum"),
        (record(size=-16384), DAMAGED, "is wrong"),
        (record(size=0), DAMAGED, "size and sum"),
        (record(size=1 << 70), DAMAGED, "is wrong"),
        (record(tokens=-1), DAMAGED, "is wrong"),
        (record(size=1 << 50), DAMAGED, "cut short"),
        (record(size=16384), DAMAGED, "goes on after its end"),
        (record(first_token=4096), DAMAGED, "that its manifest tells of"),
        (record_twice, UNSAFE, "twice"),
        (another_identity, DAMAGED, "does not stand for its identity"),
    ],
)
async def test_a_file_that_is_not_whole_is_refused_and_nothing_of_it_is_there(
    tmp_path: Path,
    archive: Path,
    change: Callable[[list[Member]], bytes],
    reason: str,
    words: str,
) -> None:
    members = take_apart(archive)
    bad = tmp_path / "bad.tar"
    bad.write_bytes(change(members))
    async with store() as (process, target, stub):
        error = await import_refused(stub, bad)
        assert error.reason == reason, error.message
        assert words in error.message
        assert process.store.gauges()["objects"] == 0
        assert not process.store.namespaces
        async with worker(target) as one:
            assert await one.matched(ids(601)) == 0


FIRST, SECOND = stored_object("extent", ids(512)), stored_object("extent", ids(768), first_block=2)
TAIL = stored_object("tail", ids(800), first_block=3)


def with_a_shorter_part(thing: Any) -> Any:
    stored, whole = thing
    parts = [*stored.parts]
    size = parts[0].nbytes - 1
    checksum = xxhash.xxh3_128_digest(whole[:size])
    parts[0] = msgspec.structs.replace(parts[0], nbytes=size, checksum=checksum)
    return msgspec.structs.replace(stored, parts=tuple(parts)), whole


def with_part(thing: Any, **fields: object) -> Any:
    stored, whole = thing
    first: Part = msgspec.structs.replace(stored.parts[0], **fields)
    return msgspec.structs.replace(stored, parts=(first, *stored.parts[1:])), whole


def with_fields(thing: Any, **fields: object) -> Any:
    return msgspec.structs.replace(thing[0], **fields), thing[1]


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([SECOND], "is not before it"),
        ([SECOND, FIRST], "is not before it"),
        ([TAIL], "is not before it"),
        ([FIRST, with_fields(SECOND, first_token=256)], "is not before it"),
        ([with_fields(FIRST, first_token=256)], "is not before it"),
        ([with_fields(FIRST, first_token=1)], "not cut as it should be"),
        ([with_fields(FIRST, group="other")], "of no group"),
        ([with_fields(TAIL, kind="state")], "of no group"),
        ([with_fields(FIRST, kind="tail")], "not cut as it should be"),
        ([with_fields(FIRST, token_ids_le=ids(512, seed=5))], "not the ones of its tokens"),
        ([with_fields(FIRST, token_ids_le=ids(511))], "not as many tokens"),
        ([with_fields(FIRST, parent=bytes(32))], "not the ones of its tokens"),
        ([with_fields(FIRST, parent=b"")], "not as many tokens"),
        ([with_part(FIRST, chain=bytes(32))], "not the ones of its tokens"),
        ([with_part(FIRST, checksum=bytes(16))], "does not match its checksum"),
        ([with_a_shorter_part(FIRST)], "not cut as it should be"),
    ],
)
async def test_an_object_that_is_not_what_it_says_is_refused_though_its_sum_is_right(
    tmp_path: Path, objects: list[Any], words: str
) -> None:
    bad = tmp_path / "forged.tar"
    bad.write_bytes(forged(objects))
    async with store() as (process, _, stub):
        error = await import_refused(stub, bad)
        assert (error.reason, error.field) == (DAMAGED, "path"), error.message
        assert words in error.message
        assert process.store.gauges()["objects"] == 0


async def test_a_forged_file_of_right_objects_is_taken_in(tmp_path: Path) -> None:
    good = tmp_path / "forged.tar"
    good.write_bytes(forged([FIRST, SECOND, TAIL]))
    async with store() as (_, target, stub):
        assert (await import_from(stub, good)).objects == 3
        async with worker(target) as one:
            assert one.root == ROOT
            assert await one.read(ids(769)) == 768
