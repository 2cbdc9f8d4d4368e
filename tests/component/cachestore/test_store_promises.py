"""What a store promises of the disk, of counts and of other tenants' bytes, one by one."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from bramley.cachestore import copying, keys
from bramley.cachestore.exchange import Published, Refusal
from bramley.cachestore.objects import padded
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import PART_BYTES, Worker, ids, local_store, settings, until, worker


async def flushed(one: Worker, root: bytes = b"") -> pb.FlushResponse:
    answer = await one.client.flush(root)
    assert answer is not None
    return answer


def files(folder: Path) -> int:
    return len(list(folder.rglob("*.kvx")))


async def test_a_tail_on_disk_stays_until_what_covers_it_is_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        await one.put(ids(300))
        assert (await flushed(one)).ok
        disk, begun, gate = process.store.tiers.disk, asyncio.Event(), asyncio.Event()
        assert disk is not None
        assert process.store.spiller is not None
        write = process.store.spiller._write  # pyright: ignore[reportPrivateUsage] held up here

        async def later(entry: object) -> None:
            begun.set()
            await gate.wait()
            await write(entry)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(process.store.spiller, "_write", later)
        await one.put(ids(512), first_block=1)
        await begun.wait()
        assert files(tmp_path / "disk") == 2  # a kill now would lose no flushed token
        gate.set()
        await flushed(one)
        await until(lambda: files(tmp_path / "disk") == 2 and len(disk.objects()) == 2)
        assert {each.kind for each in disk.objects()} == {"extent"}
        assert await one.read(ids(600)) == 512
        await one.idle()
        process.store.check()


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
async def test_a_read_that_fails_once_costs_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512))
        assert (await flushed(one)).ok
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        disk = process.store.tiers.disk
        assert disk is not None
        read = disk.read_into

        def fail(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(disk, "read_into", fail)
        assert await one.read(ids(513)) == 0
        assert process.store.counts["corrupt"] == 0
        monkeypatch.setattr(disk, "read_into", read)
        assert await one.read(ids(513)) == 512
        monkeypatch.setattr(disk, "read_into", fail)
        process.store.tiers.drop_from_ram(next(iter(process.store.tiers.catalogue.ram.values())))
        tries = 0
        while await one.matched(ids(513)):
            await one.read(ids(513))
            tries += 1
            assert tries < 5, "it is offered for ever"
        await one.idle()


async def test_a_flush_tells_of_its_own_namespace(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with (
        local_store(chosen) as (_, target),
        worker(target, salt="a") as one,
        worker(target, salt="b") as other,
    ):
        await one.put(ids(1024), first_block=2)  # refused: its parent is missing
        await other.put(ids(512))
        assert (await flushed(other, other.root)).ok
        told = await flushed(one, one.root)
        assert (told.ok, told.refused) == (False, 1)
        assert (await flushed(other, other.root)).ok
        assert not (await flushed(one)).ok  # nor is the next one, for it is not stored yet


async def test_a_flush_is_ok_again_once_what_was_refused_is_stored(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        answers = await one.put(ids(1100), first_block=2)
        assert answers == [Refusal("PARENT_MISSING")] * 2  # the blocks, and the tail after them
        await one.put(ids(512))
        told = await flushed(one)
        assert (told.ok, told.refused) == (False, 2)
        (first, _) = await one.put(ids(1100), first_block=2)
        assert isinstance(first, Published)
        assert (await flushed(one)).ok


async def test_a_flush_waits_for_what_was_there_when_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        assert process.store.spiller is not None
        write = process.store.spiller._write  # pyright: ignore[reportPrivateUsage] held up here
        seeds = iter(range(1, 1000))

        async def busy(entry: object) -> None:
            await one.put(ids(256, next(seeds)))  # there is always one more
            await write(entry)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(process.store.spiller, "_write", busy)
        await one.put(ids(256))
        async with asyncio.timeout(2.0):
            assert (await flushed(one)).ok
        monkeypatch.setattr(process.store.spiller, "_write", write)


async def test_to_explain_is_not_to_match() -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        await one.put(ids(600))
        assert one.client.link is not None
        tokens = ids(600)
        await one.client.link.stub.Explain(
            pb.ExplainRequest(
                identity=pb.NamespaceIdentity(
                    weights_digest="w",
                    config_digest="c",
                    tokenizer_digest="t",
                    kv_scheme=["full"],
                    layout="l",
                    numerics_epoch="n",
                ),
                block_hashes=keys.chain(one.root, tokens),
                token_ids_le=tokens,
            )
        )
        assert not process.store.counts["matches"]
        assert not process.store.counts["match_hits"]
        assert not process.store.counts["matched_tokens"]


async def test_padding_shows_nothing_of_who_had_the_memory_before() -> None:
    async with local_store(settings()) as (process, target), worker(target, inline=True) as one:
        (first,) = await one.put(ids(256))
        assert isinstance(first, Published)
        tiers, link = process.store.tiers, one.client.link
        assert link is not None
        entry = tiers.catalogue.entries[first.object_id]
        assert entry.run is not None
        tiers.memory.view(entry.run)[:] = b"\xaa" * entry.run.size
        await link.stub.Evict(pb.EvictRequest(root=one.root))
        tokens = ids(256, 1)
        chain = keys.chain(one.root, tokens)
        lease = (
            await link.stub.Reserve(
                pb.ReserveRequest(
                    root=one.root,
                    connection_id=link.id,
                    kind=pb.OBJECT_KIND_EXTENT,
                    group="kv",
                    tokens=256,
                    bytes=PART_BYTES,
                )
            )
        ).reservation
        await link.stub.Write(
            iter(
                [
                    pb.WriteRequest(
                        lease_id=lease.lease_id, generation=lease.generation, data=bytes(PART_BYTES)
                    )
                ]
            )
        )
        sums = copying.checksums_of(memoryview(bytes(padded(PART_BYTES))), [PART_BYTES])
        sealed = await link.stub.Seal(
            pb.SealRequest(
                lease_id=lease.lease_id,
                generation=lease.generation,
                block_hashes=chain,
                token_ids_le=tokens,
                checksums=b"".join(sums),
            )
        )
        run = tiers.catalogue.entries[sealed.object_id].run
        assert run is not None
        assert not any(tiers.memory.view(run))


async def test_verify_reads_the_file_of_what_is_in_ram_too(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        (answer,) = await one.put(ids(512))
        assert isinstance(answer, Published)
        assert (await flushed(one)).ok
        (file,) = (tmp_path / "disk").rglob("*.kvx")
        with file.open("r+b") as content:
            content.seek(-padded(PART_BYTES), os.SEEK_END)
            content.write(b"\xff" * 8)
        assert one.client.link is not None
        told = await one.client.link.stub.Verify(pb.VerifyRequest(object_ids=[answer.object_id]))
        assert list(told.corrupt_object_ids) == [answer.object_id]
        assert process.store.counts["corrupt"] == 1


async def test_to_verify_moves_nothing_to_ram(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512))
        assert (await flushed(one)).ok
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        assert one.client.link is not None
        told = await one.client.link.stub.Scrub(pb.ScrubRequest())
        assert (told.objects, told.corrupt) == (1, 0)
        assert not process.store.gauges()["ram_bytes"]


async def test_what_the_disk_can_never_take_costs_nothing_that_is_there(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), disk_bytes=1 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        await one.put(ids(256))
        assert (await flushed(one)).ok
        await one.put(ids(512, 1), part_bytes=700_000)
        await until(lambda: process.store.counts["failed"] == 1)
        assert not process.store.counts["evicted_from_disk"]
        assert not process.store.counts["breaker_trips"]  # it is not the disk's fault
        assert files(tmp_path / "disk") == 1
        told = await flushed(one)
        assert (told.ok, told.failed, told.missing) == (False, 1, 1)
        assert not (await flushed(one)).ok  # it is still in RAM alone
