"""What the cache store costs, beside what the same bytes cost without it.

``python -m bramley.bench.store`` starts a store in a process of its own and prints: a Match
among 100,000 blocks, a Seal beside a plain copy, a hit in RAM beside a plain copy, and one
on the disk beside a plain read of the same file; both files are out of the page cache.
"""

import argparse
import asyncio
import ctypes
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from bramley.cachestore import keys, matching
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.client import StoreClient
from bramley.cachestore.exchange import Match, Published, Snapshot
from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group, Query
from bramley.cachestore.objects import BLOCK, Part, StoredObject
from bramley.cachestore.settings import StoreSettings
from bramley.common.child import ChildContext

GROUP = Group("kv", required=True, sliceable=True)
IDENTITY = Identity(
    weights_digest="bench",
    config_digest="",
    tokenizer_digest="",
    kv_scheme=(),
    layout="",
    numerics_epoch="",
)
PART_BYTES = 8 << 20  # of a block: a model of 8 billion parameters, 32 layers, bf16
OBJECT_BLOCKS = 8
OBJECTS = 8  # 0.5 GB in all
RAM_BYTES = PART_BYTES * OBJECT_BLOCKS * OBJECTS  # one prompt of three
_EPOCHS = itertools.count(1)


def tokens_of(count: int, seed: int) -> bytes:
    """Ids of a prompt."""
    ids = array("I", range(count))
    ids[0] = seed
    return ids.tobytes()


def fill(catalogue: Catalogue, root: bytes, tokens: bytes) -> None:
    """Add a prompt as a line of extents of 16 blocks."""
    chains = keys.chain(root, tokens)
    parent, step = root, 16
    for first in range(0, len(chains) // 32, step):
        ends = [chains[at * 32 : at * 32 + 32] for at in range(first, first + step)]
        own = tokens[first * BLOCK * 4 : (first + step) * BLOCK * 4]
        parts = tuple(Part(chain=end, tokens=BLOCK, nbytes=1, checksum=b"") for end in ends if end)
        stored = StoredObject(
            id=os.urandom(16).hex(),
            root=root,
            kind="extent",
            group=GROUP.name,
            parent=parent,
            first_token=first * BLOCK,
            token_ids_le=own,
            parts=parts,
            header=b"",
        )
        catalogue.add(Entry(stored))
        parent = parts[-1].chain


def measure_match(runs: int) -> None:
    """Time matching alone, in a store of many blocks and in one of few."""
    root = os.urandom(32)
    print("match                      p50 ms   p99 ms")
    for stored in (1, 100_000 // 512):
        catalogue = Catalogue()
        for seed in range(stored):
            fill(catalogue, root, tokens_of(131_072, seed))
        for length in (10_240, 131_072):
            tokens = tokens_of(length, 0)
            query = Query(root, keys.chain(root, tokens), tokens)
            times: list[float] = []
            for _ in range(runs * 40):
                start_s = time.perf_counter()
                found = matching.find(catalogue, [GROUP], query)
                times.append((time.perf_counter() - start_s) * 1e3)
                assert found.boundaries[0].tokens == length - 1
            times.sort()
            p99 = times[int(len(times) * 0.99)]
            name = f"{length:7,} of {stored * 512:7,} blocks"
            print(f"{name:24} {statistics.median(times):8.2f} {p99:8.2f}", flush=True)


@asynccontextmanager
async def store(folder: Path, end: signal.Signals = signal.SIGTERM) -> AsyncGenerator[str]:
    """Run a store's process, and end it by that signal: its target."""
    settings = StoreSettings(
        folder=str(folder / "disk"),
        ram_bytes=RAM_BYTES,
        disk_bytes=4 << 30,
        write_queue_bytes=RAM_BYTES,
    )
    file = folder / "settings.json"
    file.write_bytes(msgspec.json.encode(settings))
    ready, told = os.pipe()
    owner, held = os.pipe()
    context = ChildContext(
        role="store",
        name="store",
        epoch=next(_EPOCHS),
        run_dir=str(folder),
        lease_file=str(folder / "lease.json"),
        ready_fd=told,
        owner_fd=owner,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "bramley.cachestore"),
        *("--child", context.argument(), "--settings", str(file)),
        pass_fds=(told, owner),
    )
    try:
        os.close(told)
        assert await asyncio.to_thread(os.read, ready, 4096), "the store did not start"
        yield f"unix:{folder}/store.sock"
    finally:
        process.send_signal(end)
        await process.wait()
        for fd in (ready, owner, held):
            os.close(fd)


def address(buffer: bytearray) -> int:
    """Where a buffer lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def rate(size: int, step: Callable[[], object]) -> float:
    """Bytes a second of a step, in GB."""
    start_s = time.perf_counter()
    step()
    return size / (time.perf_counter() - start_s) / 1e9


class Bench:
    """A client, and half a gigabyte of a prompt's state."""

    def __init__(self, client: StoreClient, root: bytes, folder: Path, seed: int) -> None:
        self._client = client
        self._root = root
        self._folder = folder
        self._tokens = tokens_of(OBJECTS * OBJECT_BLOCKS * BLOCK + 1, seed)
        self._chains = keys.chain(root, self._tokens)
        self._object_bytes = OBJECT_BLOCKS * PART_BYTES
        self.size = OBJECTS * self._object_bytes
        self._source = bytearray(os.urandom(1 << 20)) * (self.size >> 20)
        self._target = bytearray(b"\1") * self._object_bytes  # faulted in
        self._published: list[Published] = []

    def moved(self, client: StoreClient) -> None:
        """Go on with another client."""
        self._client = client

    def copy(self) -> float:
        """GB a second of plain copies, all faulted in."""

        def step() -> None:
            to, start = address(self._target), address(self._source)
            for at in range(OBJECTS):
                ctypes.memmove(to, start + at * self._object_bytes, self._object_bytes)

        return rate(self.size, step)

    async def seal(self) -> float:
        """GB a second from filled staging to visible."""
        taken_s = 0.0
        for at in range(OBJECTS):
            staged = self._client.stage(self._object_bytes)
            assert staged is not None
            start = at * self._object_bytes
            staged.view[:] = memoryview(self._source)[start : start + self._object_bytes]
            first = at * OBJECT_BLOCKS
            own = self._tokens[first * BLOCK * 4 : (first + OBJECT_BLOCKS) * BLOCK * 4]
            snapshot = Snapshot(
                root=self._root,
                kind="extent",
                group=GROUP.name,
                parent=self._chains[(first - 1) * 32 : first * 32] if first else self._root,
                first_token=first * BLOCK,
                token_ids_le=own,
                part_bytes=PART_BYTES,
                header=b"",
            )
            start_s = time.perf_counter()
            answer = await self._client.publish(staged, snapshot)
            taken_s += time.perf_counter() - start_s
            assert isinstance(answer, Published), answer
            self._published.append(answer)
        return self.size / taken_s / 1e9

    async def match(self) -> Match:
        """Find all of it."""
        match = await self._client.match(self._root, self._chains, self._tokens, timeout_s=5.0)
        assert match is not None
        assert match.boundaries[0].tokens == OBJECTS * OBJECT_BLOCKS * BLOCK
        return match

    async def hit(self) -> float:
        """GB a second from the question to the last byte verified and copied, as a worker does."""
        target = np.frombuffer(self._target, np.uint8)
        start_s = time.perf_counter()
        lease = await self._client.acquire(await self.match(), timeout_s=60.0)
        assert lease is not None
        with lease:
            assert all(await lease.verify_all())
            for at, part in enumerate(lease.parts):
                start = at % OBJECT_BLOCKS * PART_BYTES
                target[start : start + PART_BYTES] = np.frombuffer(part.payload, np.uint8)
        return self.size / (time.perf_counter() - start_s) / 1e9

    def cold_read(self) -> float:
        """GB a second of plain reads of the store's own files, into memory that is faulted in."""
        files = self._files()
        drop_from_cache(files)

        def step() -> None:
            for file in files:
                with file.open("rb", buffering=0) as opened:
                    opened.readinto(self._target)

        return rate(self.size, step)

    async def cold_hit(self) -> float:
        """GB a second, of objects that are on the disk only."""
        drop_from_cache(self._files())
        assert (await self.match()).boundaries[0].ssd_bytes == self.size
        return await self.hit()

    def _files(self) -> list[Path]:
        names = {answer.object_id for answer in self._published}
        return [file for file in (self._folder / "disk").rglob("*.kvx") if file.stem in names]


def drop_from_cache(files: list[Path]) -> None:
    """Have the system forget what it cached of files."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        if sys.platform == "linux":  # macOS: the store's own reads and writes leave no cache
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@asynccontextmanager
async def connected(target: str) -> AsyncGenerator[tuple[StoreClient, bytes]]:
    """Connect a client: it, and the root of its namespace."""
    client = StoreClient.connect(target, "bench", wait_s=30.0)
    try:
        await client.linked()
        yield client, await client.open_namespace(IDENTITY, [GROUP])
    finally:
        await client.close()


def show(name: str, ours: list[float], plain: list[float], than: str) -> None:
    """Print medians and their ratio."""
    a, b = statistics.median(ours), statistics.median(plain)
    print(f"{name:22} {a:6.2f} GB/s   {than:22} {b:6.2f} GB/s   ratio {a / b:5.2f}", flush=True)


async def measure_bytes(folder: Path, runs: int) -> None:
    """Time what moves bytes, each beside its plain equal."""
    copies: list[float] = []
    seals: list[float] = []
    hits: list[float] = []
    reads: list[float] = []
    colds: list[float] = []
    async with store(folder) as target, connected(target) as (client, root):
        prompts = [Bench(client, root, folder, seed) for seed in (1, 2, 3)]
        for prompt in prompts:
            copies.append(prompt.copy())
            seals.append(await prompt.seal())
            await client.flush()
        for run in range(runs):
            prompt = prompts[run % len(prompts)]  # another one is in RAM
            reads.append(prompt.cold_read())
            colds.append(await prompt.cold_hit())
            copies.append(prompt.copy())
            hits.append(await prompt.hit())
    show("Seal", seals, copies, "plain copy")
    show("hit in RAM", hits, copies, "plain copy")
    show("hit on the disk", colds, reads, "plain cold read")
    async with store(folder) as target, connected(target) as (client, _):
        for prompt in prompts:
            prompt.moved(client)
        reads = [prompts[1].cold_read(), prompts[2].cold_read()]
        restarts = [await prompts[0].cold_hit()]
    show("right after a restart", restarts, reads, "plain cold read")


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians are over this many")
    arguments = parser.parse_args()
    measure_match(arguments.runs)
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        await measure_bytes(Path(folder), arguments.runs)


if __name__ == "__main__":
    uvloop.run(main())
