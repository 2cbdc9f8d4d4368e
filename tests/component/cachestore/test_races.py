"""Two who want the same at once: whoever wins, what is served is right and the counts balance."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bramley.cachestore import admin, keys
from bramley.cachestore.arena import Run
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.disk import Disk
from bramley.cachestore.exchange import Published
from bramley.cachestore.matching import Group, Query
from bramley.cachestore.objects import ALIGN, Kind
from bramley.cachestore.store import Store
from support.core import CoreProcess, drop_copies, put, read
from support.simulated_disk import SimulatedDisk
from support.store import KV, identity, ids, local_store, settings, until, worker
from support.stored import make_stored

ROUNDS = 100


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for SQLite's files, in RAM where the system offers it."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


async def core(
    place: Path, *, ram_bytes: int = 1 << 20, disk_bytes: int = 1 << 22
) -> tuple[CoreProcess, Store, bytes]:
    files = SimulatedDisk(place)
    process = CoreProcess(place, files, 1, ram_bytes=ram_bytes, disk_bytes=disk_bytes)
    store = await process.start()
    return process, store, store.open_namespace(identity(), [KV], 0.0)


async def yields(times: int) -> None:
    """Let the others go first so many times."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_two_workers_that_seal_one_prefix_at_once_have_one_file_and_are_both_served(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with (
        local_store(chosen) as (process, target),
        worker(target) as one,
        worker(target) as other,
    ):
        for seed in range(10):
            answers = await asyncio.gather(one.put(ids(512, seed)), other.put(ids(512, seed)))
            assert all(isinstance(answer, Published) for (answer,) in answers)
            reads = [each.read(ids(513, seed)) for each in (one, other)]
            assert await asyncio.gather(*reads) == [512, 512]
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        assert len(list((tmp_path / "disk").rglob("*.kvx"))) == 10
        await one.idle()
        process.store.check()


async def test_a_seal_beside_the_eviction_of_its_parent_is_whole_or_refused(place: Path) -> None:
    process, store, root = await core(place)
    chance = random.Random(7)  # noqa: S311
    answers: set[str] = set()
    for number in range(ROUNDS):
        seed = number % 7
        await put(store, root, ids(512, seed))

        async def evict() -> None:
            await yields(chance.randrange(4))
            await admin.evict(store, [*store.tiers.catalogue.entries.values()], 0.0)

        answer, _ = await asyncio.gather(put(store, root, ids(1024, seed), 2), evict())
        answers.add(answer)
        restored = await read(store, root, ids(1025, seed))
        assert restored in ({1024, 512, 0} if answer == "ok" else {512, 0})
        store.check()
    assert {"ok", "PARENT_MISSING"} <= answers
    await process.stop()


async def test_a_read_beside_an_eviction_is_right_or_a_miss(place: Path) -> None:
    process, store, root = await core(place)
    chance = random.Random(8)  # noqa: S311
    restored: set[int] = set()
    for number in range(ROUNDS):
        tokens = ids(1024, number % 5)
        await put(store, root, tokens)
        if number % 2:
            await process.flush(b"")
            drop_copies(store)

        async def evict() -> None:
            await yields(chance.randrange(6))
            await admin.evict(store, [*store.tiers.catalogue.entries.values()], 0.0)

        steps = [read(store, root, ids(1025, number % 5)), evict(), read(store, root, tokens)]
        chance.shuffle(steps)
        found = await asyncio.gather(*steps)
        restored.update(each for each in found if isinstance(each, int))
        store.check()
        assert not store.leases.reads
    assert {0, 1024} <= restored
    assert not store.counts["corrupt"]
    await process.stop()


async def test_readers_of_more_than_fits_take_turns_or_miss(place: Path) -> None:
    process, store, root = await core(place, ram_bytes=8 * ALIGN)
    for seed in range(6):
        await put(store, root, ids(1024, seed))
        await process.flush(b"")
    for _ in range(20):
        found = await asyncio.gather(*[read(store, root, ids(1025, seed)) for seed in range(6)])
        assert set(found) <= {0, 1024}
        assert max(found) == 1024
        store.check()
    assert not store.counts["corrupt"]
    await process.stop()


async def test_a_reader_keeps_its_map_when_the_file_and_the_store_go(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), ram_bytes=2 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        await one.put(ids(512))
        await one.client.flush()
        match = await one.match(ids(513))
        assert match is not None
        lease = await one.client.acquire(match)
        assert lease is not None
        right = [bytes(part.payload) for part in lease.parts]
        (file,) = (tmp_path / "disk").rglob("*.kvx")
        file.unlink()
        for seed in range(1, 9):  # others want its memory
            await one.put(ids(512, seed), part_bytes=200_000)
            await one.client.flush()
        assert lease.is_held
        assert [bytes(part.payload) for part in lease.parts] == right
        process.store.check()
    assert [bytes(part.payload) for part in lease.parts] == right
    assert all(lease.verify(part) for part in lease.parts)
    lease.release()


async def test_who_goes_while_room_is_made_for_it_leaves_no_lease(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, store, root = await core(place)
    take = store.tiers.memory.take

    async def go_meanwhile(size: int) -> Run | None:
        run = await take(size)
        store.disconnected("one")
        return run

    with monkeypatch.context() as patch:
        patch.setattr(store.tiers.memory, "take", go_meanwhile)
        assert await put(store, root, ids(512)) == "NOT_CONNECTED"
    assert not store.tiers.memory.arena.used_bytes
    assert not store.counts["reserved"]
    assert not store.leases.reads
    assert await put(store, root, ids(512)) == "ok"
    store.check()
    await process.stop()


async def test_leases_that_end_beside_reads_and_writes_leave_nothing(place: Path) -> None:
    process, store, root = await core(place)
    for number in range(ROUNDS):

        async def end() -> None:
            await yields(3)
            store.expire(float("inf"))
            store.disconnected("one")

        seeds = (number % 3, number % 4)
        steps = [put(store, root, ids(512, seed)) for seed in seeds]
        await asyncio.gather(*steps, read(store, root, ids(513, number % 3)), end())
        assert not store.leases.writes
        assert not store.leases.reads
        store.check()
    await until(lambda: not store.tiers.pending)
    await process.stop()


@pytest.mark.parametrize("kind", ["state", "tail"])
@pytest.mark.parametrize("first_goes", [True, False])
async def test_of_two_files_of_the_same_the_other_is_found_when_one_goes(
    place: Path, kind: Kind, *, first_goes: bool
) -> None:
    """As a power cut leaves them that brings back a removed one beside its successor."""
    model, tokens = identity(), ids(100)
    root = keys.root(model)
    group = "kv" if kind == "tail" else "states"
    files = SimulatedDisk(place)
    disk = Disk.open(place, files)
    for number in range(2):
        stored, payload = make_stored(number, (100,), name=root)
        end = keys.tail_hash(root, tokens)
        part = msgspec.structs.replace(stored.parts[0], chain=end, tokens=100)
        twin = {"kind": kind, "group": group, "token_ids_le": tokens, "parts": (part,)}
        disk.write(msgspec.structs.replace(stored, **twin), payload)
    disk.close(clean=True)
    process = CoreProcess(place, files, 1)
    store = await process.start()
    groups = [KV] if kind == "tail" else [Group("states", required=True, sliceable=False)]
    store.open_namespace(model, groups, 0.0)

    def matched() -> Entry:
        (use,) = store.match(Query(root, b"", ids(101))).boundaries[0].uses
        assert use.tokens == 100
        return use.entry

    both = list(store.tiers.catalogue.entries.values())
    assert len(both) == 2
    goes = both[0 if first_goes else 1]
    assert (await admin.evict(store, [goes], 0.0)).evicted == 1
    (other,) = store.tiers.catalogue.entries.values()
    assert matched() is other
    assert (await admin.evict(store, [other], 0.0)).evicted == 1
    assert not store.match(Query(root, b"", ids(101))).boundaries
    store.check()
    await process.stop()


async def test_others_have_their_turn_while_much_is_listed_or_evicted(place: Path) -> None:
    process, store, root = await core(place, ram_bytes=8 << 20, disk_bytes=1 << 24)
    for seed in range(100):
        await put(store, root, ids(256, seed))
    await process.flush(b"")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    listing = admin.listed(store, root=root, session_key="s", after="", begins="", limit=1)
    assert not await listing
    assert turns
    turns = 0
    entries = [*store.tiers.catalogue.entries.values()]
    assert (await admin.evict(store, entries, 0.0)).evicted == 100
    assert turns
    running.cancel()
    await process.stop()
