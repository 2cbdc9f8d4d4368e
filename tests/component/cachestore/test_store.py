"""A store and its clients on a temporary folder: what goes in comes out, and nothing else."""

import asyncio
import os
from pathlib import Path

import pytest

from bramley.cachestore import keys, wire
from bramley.cachestore.exchange import Published, Refusal
from bramley.cachestore.matching import Group
from bramley.cachestore.segments import SegmentKind
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import KV, PART_BYTES, identity, ids, local_store, settings, until, worker

STATES = Group("recurrent", required=True, sliceable=False)
DRAFT = Group("draft", required=False, sliceable=True)


@pytest.mark.parametrize("inline", [False, True], ids=["memory", "inline"])
@pytest.mark.parametrize("kind", ["memfd", "posix"])
async def test_what_one_worker_stores_another_reads(
    tmp_path: Path, kind: SegmentKind, inline: bool
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with (
        local_store(chosen, kind) as (process, target),
        worker(target, inline=inline) as one,
        worker(target, inline=not inline) as other,
    ):
        for answer in await one.put(ids(1000)):
            assert isinstance(answer, Published)
            assert not answer.existed
        assert await other.read(ids(1000)) == 999
        assert await other.read(ids(2000)) == 1000
        await other.idle()
        process.store.check()


async def test_a_restart_finds_everything_on_disk(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(1000))
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        assert flushed.longest_prefix_tokens == 1000
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        match = await one.match(ids(1001))
        assert match is not None
        assert match.boundaries[0].ssd_bytes
        assert not match.boundaries[0].ram_bytes
        assert await one.read(ids(1001)) == 1000
        assert (await one.idle())["acquired_ssd"] == 2
        assert await one.read(ids(1001)) == 1000
        assert (await one.idle())["acquired_ssd"] == 2  # in RAM by now
        process.store.check()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 512])
async def test_an_exact_repeat_leaves_one_token_to_compute(length: int) -> None:
    async with local_store(settings()) as (_, target), worker(target) as one:
        await one.put(ids(length))
        assert await one.read(ids(length)) == length - 1


@pytest.mark.parametrize("shared", [100, 255, 256, 257, 512, 700, 1000])
async def test_a_prompt_uses_what_it_shares_to_the_token(shared: int) -> None:
    async with (
        local_store(settings()) as (_, target),
        worker(target) as one,
        worker(target) as other,
    ):
        await one.put(ids(1000))
        assert await other.read(ids(shared) + ids(500, seed=9)) == shared


async def test_turns_are_a_line_of_extents_and_their_tails_are_superseded() -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        await one.put(ids(300))
        await one.put(ids(700), first_block=1)
        await one.put(ids(1400), first_block=2)
        assert await one.read(ids(1500)) == 1400
        objects = await one.idle()
        assert objects["superseded"] == 2
        assert objects["objects"] == 4
        process.store.check()


async def test_two_workers_that_seal_one_prefix_share_one_object() -> None:
    async with (
        local_store(settings()) as (process, target),
        worker(target) as one,
        worker(target) as other,
    ):
        first, second = await asyncio.gather(one.put(ids(600)), other.put(ids(600)))
        for a, b in zip(first, second, strict=True):
            assert isinstance(a, Published)
            assert isinstance(b, Published)
            assert a.object_id == b.object_id
        assert (await one.idle())["objects"] == 2
        process.store.check()


async def test_a_longer_extent_is_stored_beside_a_shorter_one() -> None:
    async with local_store(settings()) as (_, target), worker(target) as one:
        await one.put(ids(512))
        await one.put(ids(1024))
        assert await one.read(ids(1100)) == 1024


async def test_salts_see_nothing_of_each_other_and_leave_no_lease() -> None:
    async with (
        local_store(settings()) as (process, target),
        worker(target, salt="a") as one,
        worker(target, salt="b") as other,
    ):
        await one.put(ids(600))
        for _ in range(100):
            assert await one.read(ids(600)) == 599
        assert await other.matched(ids(600)) == 0
        await one.idle()
        assert not process.store.leases.reads
        process.store.check()


async def test_a_match_falls_back_to_where_every_required_group_is() -> None:
    async with local_store(settings()) as (_, target), worker(target, groups=[KV, STATES]) as one:
        await one.put(ids(1000))
        assert await one.matched(ids(1000)) == 0
        await one.put_state(ids(512), "recurrent")
        await one.put_state(ids(600), "recurrent")
        deep = await one.put_state(ids(900), "recurrent")
        assert isinstance(deep, Published)
        assert await one.read(ids(1000)) == 900
        assert one.client.link is not None
        await one.idle()
        evicted = await one.client.link.stub.Evict(pb.EvictRequest(object_ids=[deep.object_id]))
        assert evicted.evicted == 1
        assert await one.read(ids(1000)) == 600
        assert await one.read(ids(600)) == 512  # a state is not cut
        assert await one.matched(ids(300) + ids(500, seed=1)) == 0


async def test_a_missing_optional_group_is_told() -> None:
    async with local_store(settings()) as (_, target), worker(target, groups=[KV, DRAFT]) as one:
        await one.put(ids(600))
        match = await one.match(ids(600))
        assert match is not None
        assert match.missing_groups == ("draft",)
        await one.put(ids(600), group="draft")
        match = await one.match(ids(600))
        assert match is not None
        assert match.missing_groups == ()
        assert len(match.boundaries[0].object_ids) == 4
        assert await one.read(ids(600)) == 599


async def test_the_least_recently_used_leaves_the_ram_tier_and_stays_on_disk(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), ram_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        for seed in range(12):
            await one.put(ids(512, seed), part_bytes=500_000)
            await one.client.flush()
        counts = await one.idle()
        assert counts["ram_bytes"] <= 4 << 20
        assert counts["dropped_from_ram"] >= 8
        for seed in range(12):
            assert await one.read(ids(513, seed)) == 512
        await one.idle()
        process.store.check()


async def test_the_disk_tier_keeps_its_budget_and_its_prefixes_whole(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), disk_bytes=4 << 20, ram_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        await one.put(ids(512), part_bytes=500_000)
        for seed in range(12):
            tokens = ids(512) + ids(256, seed + 1)
            await one.put(tokens, first_block=2, part_bytes=500_000, session_key="s")
            await one.client.flush()
            assert await one.read(tokens + ids(1)) == 768
        counts = await one.idle()
        assert counts["ssd_bytes"] <= 4 << 20
        assert counts["evicted_from_disk"] >= 6
        assert await one.read(ids(513)) == 512  # never a leaf, so it has stayed
        process.store.check()


async def test_without_a_disk_the_ram_tier_forgets_the_oldest() -> None:
    async with (
        local_store(settings(ram_bytes=4 << 20)) as (process, target),
        worker(target) as one,
    ):
        for seed in range(12):
            for answer in await one.put(ids(512, seed), part_bytes=500_000):
                assert isinstance(answer, Published)
        assert await one.matched(ids(513, 0)) == 0
        assert await one.read(ids(513, 11)) == 512
        counts = await one.idle()
        assert counts["evicted_clean"] >= 8
        flushed = await one.client.flush()
        assert flushed is not None
        assert not flushed.ok
        assert flushed.missing
        process.store.check()


async def test_what_is_read_stays_in_place() -> None:
    async with local_store(settings(ram_bytes=4 << 20)) as (_, target), worker(target) as one:
        await one.put(ids(512), part_bytes=500_000)
        match = await one.match(ids(513))
        assert match is not None
        lease = await one.client.acquire(match)
        assert lease is not None
        for seed in range(1, 12):
            await one.put(ids(512, seed), part_bytes=500_000)
        assert all(lease.verify(part) for part in lease.parts)
        assert lease.is_held
        lease.release()
        assert not lease.is_held


async def test_a_full_ram_tier_refuses_with_a_reason() -> None:
    async with local_store(settings(ram_bytes=4 << 20)) as (_, target), worker(target) as one:
        leases = []
        for seed in range(3):
            await one.put(ids(512, seed), part_bytes=600_000)
            match = await one.match(ids(513, seed))
            assert match is not None
            leases.append(await one.client.acquire(match))
        (refusal,) = await one.put(ids(512, 9), part_bytes=600_000)
        assert refusal == Refusal("RAM_FULL", retry_after_s=1.0)


@pytest.mark.parametrize(
    ("length", "first_block", "part_bytes", "reason"),
    [(512, 0, 3_000_000, "OVERSIZE"), (1024, 2, PART_BYTES, "PARENT_MISSING")],
)
async def test_what_cannot_be_stored_is_refused_with_a_reason(
    length: int, first_block: int, part_bytes: int, reason: str
) -> None:
    async with local_store(settings(ram_bytes=4 << 20)) as (_, target), worker(target) as one:
        (refusal,) = await one.put(ids(length), first_block=first_block, part_bytes=part_bytes)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == reason


async def test_damage_that_a_reader_finds_is_never_served_again(tmp_path: Path) -> None:
    async with (
        local_store(settings(folder=str(tmp_path / "disk"))) as (process, target),
        worker(target) as one,
    ):
        await one.put(ids(1000))
        await one.client.flush()
        match = await one.match(ids(1000))
        assert match is not None
        lease = await one.client.acquire(match)
        assert lease is not None
        entry = process.store.tiers.catalogue.entries[match.boundaries[0].object_ids[1]]
        assert entry.run is not None
        process.store.tiers.memory.view(entry.run)[5] ^= 1
        with lease:
            assert [lease.verify(part) for part in lease.parts] == [True, True, True, False]
        await until(lambda: process.store.counts["corrupt"] == 1)
        assert await one.read(ids(1000)) == 768
        await one.put(ids(1000), first_block=3)  # stored anew
        assert await one.read(ids(1000)) == 999
        await one.idle()
        process.store.check()


async def test_damage_on_disk_is_a_miss_at_once(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512))
        await one.put(ids(1024), first_block=2)
        await one.client.flush()
    files = sorted((tmp_path / "disk").rglob("*.kvx"), key=lambda file: file.stat().st_mtime_ns)
    content = bytearray(files[1].read_bytes())
    content[-PART_BYTES] ^= 1
    stat = files[1].stat()
    files[1].write_bytes(content)

    os.utime(files[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    async with local_store(chosen, epoch=2) as (_, target), worker(target) as one:
        assert await one.read(ids(1100)) in {0, 512}  # the first try finds it out
        assert await one.read(ids(1100)) == 512
        assert (await one.idle())["corrupt"] <= 1


async def test_a_missing_disk_is_a_store_without_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chosen = settings(folder=str(tmp_path / "file" / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        assert process.store.tiers.disk is None
        await one.put(ids(600))
        assert await one.read(ids(600)) == 599
        assert (await one.idle())["ssd_is_on"] == 0


async def test_explain_says_why() -> None:
    async with local_store(settings()) as (_, target), worker(target) as one:
        await one.put(ids(600))
        assert one.client.link is not None
        stub = one.client.link.stub
        tokens = ids(300) + ids(500, seed=3)
        identity = pb.NamespaceIdentity(
            weights_digest="w",
            config_digest="c",
            tokenizer_digest="t",
            kv_scheme=["full"],
            layout="l",
            numerics_epoch="n",
        )
        chains = keys.chain(one.root, tokens)
        request = pb.ExplainRequest(identity=identity, block_hashes=chains, token_ids_le=tokens)
        told = await stub.Explain(request)
        assert (told.matched_tokens, told.first_differing_block) == (300, 1)
        request.identity.layout = "another"
        request.identity.salt = "s"
        told = await stub.Explain(request)
        assert told.mismatched_fields == ["layout", "salt"]


async def test_explain_tells_the_disk_s_share_where_several_groups_lead_to_a_boundary(
    tmp_path: Path,
) -> None:
    chosen, groups = settings(folder=str(tmp_path / "disk")), [KV, STATES]
    async with local_store(chosen) as (_, target), worker(target, groups=groups) as one:
        await one.put(ids(600))
        await one.put_state(ids(600), STATES.name)
        await one.client.flush()
    async with local_store(chosen, epoch=2) as (_, target), worker(target, groups=groups) as one:
        assert one.client.link is not None
        tokens = ids(700)
        request = pb.ExplainRequest(
            identity=wire.identity_message(identity()),
            block_hashes=keys.chain(one.root, tokens),
            token_ids_le=tokens,
        )
        told = await one.client.link.stub.Explain(request)
        assert (told.matched_tokens, told.ssd_tokens) == (600, 600)


async def test_watch_tells_first_what_is_there_and_then_what_changes() -> None:
    async with local_store(settings()) as (_, target), worker(target) as one:
        await one.put(ids(256))
        assert one.client.link is not None
        call = one.client.link.stub.Watch(pb.CacheStoreServiceWatchRequest())
        try:
            messages = aiter(call)
            first = await anext(messages)
            assert first.reset
            assert first.epoch == 1
            there = await anext(messages)
            assert there.stored_hashes == keys.chain(one.root, ids(256))
            await one.put(ids(512), first_block=1)
            new = await anext(messages)
            assert new.stored_hashes == keys.chain(one.root, ids(512))[32:]
            assert new.sequence > there.sequence
            evicted = await one.client.link.stub.Evict(pb.EvictRequest(root=one.root))
            assert evicted.evicted == 2
            gone = await anext(messages)
            assert gone.removed_hashes == new.stored_hashes
        finally:
            call.cancel()


async def test_scrub_finds_damage_in_ram() -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        (answer,) = await one.put(ids(256))
        assert isinstance(answer, Published)
        entry = process.store.tiers.catalogue.entries[answer.object_id]
        assert entry.run is not None
        assert one.client.link is not None
        whole = await one.client.link.stub.Scrub(pb.ScrubRequest())
        assert (whole.objects, whole.corrupt) == (1, 0)
        process.store.tiers.memory.view(entry.run)[0] ^= 1
        told = await one.client.link.stub.Verify(pb.VerifyRequest(object_ids=[answer.object_id]))
        assert told.corrupt_object_ids == [answer.object_id]
        assert await one.matched(ids(300)) == 0


async def test_a_pinned_object_stays() -> None:
    async with local_store(settings(ram_bytes=4 << 20)) as (_, target), worker(target) as one:
        (answer,) = await one.put(ids(512), part_bytes=500_000)
        assert isinstance(answer, Published)
        assert one.client.link is not None
        await one.client.link.stub.Pin(pb.PinRequest(object_ids=[answer.object_id]))
        for seed in range(1, 12):
            await one.put(ids(512, seed), part_bytes=500_000)
        assert await one.matched(ids(513)) == 512


async def test_objects_are_listed_in_pages() -> None:
    async with local_store(settings()) as (_, target), worker(target) as one:
        for seed in range(5):
            await one.put(ids(256, seed))
        assert one.client.link is not None
        stub = one.client.link.stub
        first = (await stub.List(pb.ListRequest(limit=3))).objects
        request = pb.ListRequest(after_object_id=first[-1].object_id, root=one.root)
        rest = (await stub.List(request)).objects
        assert len({one.object_id for one in [*first, *rest]}) == 5
        assert first[0].tokens == 256
        assert first[0].promise == pb.PROMISE_HELD
