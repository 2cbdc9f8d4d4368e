"""What was reported of other cache stores, where no other test shows that it is not so here."""

import asyncio
import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bramley.cachestore import admin, keys, spill
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.files import Files
from bramley.cachestore.folder import Folder
from bramley.cachestore.keys import HASH_BYTES
from bramley.cachestore.matching import Group, Query, find
from bramley.cachestore.objects import ALIGN, BLOCK, Part, StoredObject
from support.core import CoreProcess, drop_copies, put, read
from support.failing_files import UnsyncedFiles
from support.simulated_disk import SimulatedDisk
from support.store import KV, Worker, identity, ids, local_store, settings, worker
from support.stored import physical_bytes

STATES = Group("recurrent", required=True, sliceable=False)
ROOT = bytes(32)
MANY = 200_000
NAMES_MAX = 4096  # in a folder, of so many
COUNTS = pytest.mark.parametrize("count", [20_000, pytest.param(MANY, marks=pytest.mark.slow)])


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for SQLite's files, in RAM where the system offers it."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


class CountedReads(SimulatedDisk):
    """Counts the reads of payloads."""

    reads = 0

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        """Read, and count what is no header."""
        self.reads += offset >= ALIGN
        return super().read_into(fd, target, offset)


async def test_report_1_a_damaged_file_is_tried_once_and_the_next_match_is_shorter(
    place: Path,
) -> None:
    files = CountedReads(place)
    process = CoreProcess(place, files, 1, ram_bytes=1 << 20)
    store = await process.start()
    root = store.open_namespace(identity(), [KV], 0.0)
    await put(store, root, ids(512))
    await put(store, root, ids(1024), 2)
    assert (await process.flush(b"")).ok
    drop_copies(store)
    (last,) = [e for e in store.tiers.catalogue.entries.values() if e.object.first_token]
    path = files.paths()[last.id]
    files.change(path, files.content()[path][:-ALIGN] + b"\xff" * ALIGN)
    query = Query(root, keys.chain(root, ids(1025)), ids(1025))
    assert store.match(query).boundaries[0].tokens == 1024
    assert await read(store, root, ids(1025)) == 0  # a miss, for this once
    tried = files.reads
    assert tried == 2  # each file once
    assert store.match(query).boundaries[0].tokens == 512
    assert await read(store, root, ids(1025)) == 512
    assert files.reads == tried
    assert store.counts["corrupt"] == 1
    store.check()
    await process.stop()


async def hybrid(one: Worker, *states: int) -> None:
    """Store a prompt of 1024 tokens, and a state after some of them."""
    await one.put(ids(1024))
    for tokens in states:
        await one.put_state(ids(tokens), "recurrent")


async def test_report_9_without_its_state_a_prompt_is_matched_where_all_groups_are(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with (
        local_store(chosen) as (process, target),
        worker(target, groups=[KV, STATES]) as one,
    ):
        await hybrid(one, 512, 1024)
        assert await one.read(ids(1025)) == 1024
        assert (await one.client.flush()) is not None  # nothing is being written any more
        await one.idle()
        store = process.store
        for tokens, left in ((1024, 512), (512, 0)):
            ends = [e for e in store.tiers.catalogue.entries.values() if e.end_token == tokens]
            states = [e for e in ends if e.object.kind == "state"]
            assert (await admin.evict(store, states, time.monotonic())).evicted == 1
            assert await one.read(ids(1025)) == left
            await one.idle()
        store.check()


async def test_report_14_what_is_restored_is_not_computed_again_and_without_a_state_nothing_is(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with (
        local_store(chosen) as (_, target),
        worker(target, groups=[KV, STATES]) as one,
    ):
        await hybrid(one)
        match = await one.match(ids(1100))
        assert match is None or not match.boundaries  # blocks alone restore nothing
        await hybrid(one, 1024)
        assert (await one.client.flush()) is not None
    async with (
        local_store(chosen, epoch=2) as (_, target),
        worker(target, groups=[KV, STATES]) as one,
    ):
        assert 1100 - await one.read(ids(1100)) <= BLOCK


async def fill(process: CoreProcess, root: bytes) -> None:
    """Store 1.5 MB of one model, and have it written."""
    for seed in range(30):
        await put(process.store, root, ids(512, seed))
        async with asyncio.timeout(spill.TRIM_AGAIN_S - 1):  # also while room is made
            assert (await process.flush(b"")).pending == 0


async def test_b029_report_13_the_disk_keeps_one_limit_over_models_settings_and_restarts(
    tmp_path: Path,
) -> None:
    limit, one_object = 1 << 20, 4 * ALIGN

    def started(epoch: int) -> CoreProcess:
        return CoreProcess(tmp_path, UnsyncedFiles(), epoch, ram_bytes=1 << 20, disk_bytes=limit)

    process = started(1)
    store = await process.start()
    models = [
        identity(weights_digest="1"),
        identity(weights_digest="2"),
        identity(kv_scheme=("4",)),
    ]
    for model in models:
        root = store.open_namespace(model, [KV], 0.0)
        await fill(process, root)
        assert physical_bytes(tmp_path) <= limit + one_object
        assert await read(store, root, ids(513, 29)) == 512  # the newest is there
    await process.stop()
    process = started(2)
    store = await process.start()
    there = set(store.tiers.catalogue.entries)
    assert there
    root = store.open_namespace(models[0], [KV], 0.0)  # the others' objects are nobody's now
    await fill(process, root)
    assert physical_bytes(tmp_path) <= limit + one_object
    assert await read(store, root, ids(513, 29)) == 512
    assert not there <= store.tiers.catalogue.entries.keys()
    store.check()
    await process.stop()


def many(count: int) -> tuple[Catalogue, bytes]:
    """Make a catalogue of so many extents, in lines of ten, and the tokens of one line."""
    catalogue = Catalogue()
    tokens = ids(10 * BLOCK)
    line = keys.chain(ROOT, tokens)
    for number in range(count):
        at, which = number % 10, number // 10
        if which == 0:
            names = [ROOT, *(line[i : i + HASH_BYTES] for i in range(0, len(line), HASH_BYTES))]
            parent, chain = names[at], names[at + 1]
        else:
            seeds = [f"{which}/{at - 1}".encode(), f"{which}/{at}".encode()]
            parent, chain = (hashlib.sha256(seed).digest() for seed in seeds)
            parent = parent if at else ROOT
        own = tokens[at * BLOCK * 4 : (at + 1) * BLOCK * 4]
        stored = StoredObject(
            id=chain.hex()[:32],
            root=ROOT,
            kind="extent",
            group="kv",
            parent=parent,
            first_token=at * BLOCK,
            token_ids_le=own if which == 0 else which.to_bytes(4, "little") * BLOCK,
            parts=(Part(chain=chain, tokens=BLOCK, nbytes=100, checksum=bytes(16)),),
            header=b"",
        )
        catalogue.add(Entry(stored))
    return catalogue, tokens


def seconds_to_match(catalogue: Catalogue, tokens: bytes) -> float:
    """Find one line, and say how long it took at best."""
    query = Query(ROOT, keys.chain(ROOT, tokens), tokens + bytes(4))
    best = 1.0
    for _ in range(20):
        began_s = time.perf_counter()
        found = find(catalogue, [KV], query)
        best = min(best, time.perf_counter() - began_s)
        assert found.boundaries[0].tokens == 10 * BLOCK
    return best


@COUNTS
def test_report_11_a_match_among_many_extents_takes_as_long_as_among_2_000(count: int) -> None:
    few_s = seconds_to_match(*many(2000))
    assert seconds_to_match(*many(count)) <= 3 * few_s + 0.0005


@COUNTS
def test_report_11_no_folder_has_more_than_4096_names(tmp_path: Path, count: int) -> None:
    folder = Folder(tmp_path, Files())
    names = (hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(count))
    fans = Counter(folder.object(ROOT, name).parent for name in names)
    assert max(fans.values()) <= NAMES_MAX * count // MANY
    assert len({fan.parent for fan in fans}) == 1
    assert len(fans) <= NAMES_MAX


class SlowDisk(SimulatedDisk):
    """Writes 20 MB a second."""

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Take the time that it takes."""
        time.sleep(len(data) / 20e6)
        super().write(fd, data, offset)


async def test_report_12_a_slow_disk_makes_writers_wait_and_loses_nothing(place: Path) -> None:
    """As 4 GB over 5 MB a second into 2 GB of RAM, a thousand times smaller and quicker."""
    files = SlowDisk(place)
    ram = 40 * ALIGN
    process = CoreProcess(place, files, 1, ram_bytes=ram, disk_bytes=64 << 20)
    store = await process.start()
    root = store.open_namespace(identity(), [KV], 0.0)
    refused = 0
    for seed in range(120):
        while (answer := await put(store, root, ids(512, seed))) != "ok":
            assert answer in {"QUEUE_FULL", "RAM_FULL"}, answer
            refused += 1
            await asyncio.sleep(0.005)
        assert store.gauges()["ram_segment_bytes"] <= ram
        store.check()
    assert refused
    assert store.counts["refused_queue_full"] + store.counts["refused_ram_full"] == refused
    answer = await process.flush(b"")
    assert (answer.pending, answer.failed, answer.missing) == (0, 0, 0)
    assert store.counts["sealed"] == store.counts["spilled"] == 120
    for seed in range(120):
        assert await read(store, root, ids(513, seed)) == 512
    store.check()
    await process.stop()
