"""Kill the store, its writers and its readers at every point: nothing torn, held or lost."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from bramley.cachestore.exchange import Published
from bramley.cachestore.process import StoreProcess
from support import store_writer
from support.store import (
    PATIENCE_S,
    ids,
    local_store,
    settings,
    store_child,
    until,
    worker,
)

SCRIPT = Path(store_writer.__file__)
WRITTEN = ids(store_writer.TOKENS, store_writer.SEED)
MORE = ids(store_writer.TOKENS + 1, store_writer.SEED)
POINTS = (
    "seal.claimed:2",
    "seal.copied:2",
    "seal.visible:2",
    "spill.begin:2",
    "files.preallocate:2",
    "files.write:4",  # after a header, a payload and what the namespace is
    "files.write:5",
    "files.fdatasync:3",
    "files.link:2",
    "spill.written:2",
)


class Victim:
    """A writer in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def answer(self) -> str:
        """Wait for what it says next."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stdout.readline()).decode().strip()

    async def do(self, step: str) -> str:
        """Have it do a step: what it says of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n".encode())
        return await self.answer()


@asynccontextmanager
async def victim(target: str, steps: Sequence[str] = ()) -> AsyncGenerator[Victim]:
    """Start a writer, and have it do steps."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(SCRIPT), target),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(SCRIPT.parents[1])},
    )
    try:
        one = Victim(process)
        assert await one.answer() == "ready"
        for step in steps:
            assert await one.do(step) == "ok"
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def nothing_is_held(process: StoreProcess) -> bool:
    return not process.store.leases.reads and not process.store.leases.writes


@pytest.mark.parametrize(
    ("steps", "matched"),
    [
        (["stage"], 0),
        (["stage", "reserve"], 0),
        (["stage", "reserve", "seal"], 512),
        (["stage", "reserve", "seal", "acquire"], 512),
    ],
    ids=["staged", "reserved", "sealed", "acquired"],
)
async def test_a_killed_worker_frees_what_it_held_and_leaves_nothing_torn(
    steps: list[str], matched: int
) -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        async with victim(target, steps) as dying:
            dying.process.kill()
            await dying.process.wait()
            ended_s = monotonic()
            await until(lambda: nothing_is_held(process))
            assert monotonic() - ended_s < 0.1
        assert await one.read(MORE) == matched
        await one.put(WRITTEN)  # the next worker is not in its way
        assert await one.read(MORE) == 512
        await one.idle()
        process.store.check()


async def test_a_worker_killed_while_the_store_copies_leaves_nothing_torn() -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        async with victim(target, ["stage", "reserve"]) as dying:
            assert dying.process.stdin is not None
            dying.process.stdin.write(b"seal\n")
            await until(lambda: not process.store.leases.writes)
            dying.process.kill()
        await until(lambda: process.store.sealing == 0 and nothing_is_held(process))
        assert await one.read(MORE) in {0, 512}
        process.store.check()


async def test_report_3_a_stopped_writer_is_fenced_and_harms_nothing() -> None:
    chosen = settings(lease_ttl_s=0.3, ram_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        async with victim(target, ["stage", "reserve"]) as stopped:
            stopped.process.send_signal(signal.SIGSTOP)
            await until(lambda: process.store.counts["expired"] == 1)
            for seed in range(6):
                await one.put(ids(512, seed), part_bytes=500_000)
            stopped.process.send_signal(signal.SIGCONT)
            assert await stopped.do("scribble") == "ok"
            assert await stopped.do("seal") == "FAILED_PRECONDITION"
            assert await one.read(ids(513, 5)) == 512
            assert await one.matched(MORE) == 0
        await one.idle()
        process.store.check()


async def test_report_7_an_old_seal_completes_no_new_reservation() -> None:
    async with local_store(settings()) as (process, target):
        async with victim(target, ["stage", "reserve"]) as old:
            process.store.expire(float("inf"))
            async with victim(target, ["stage", "reserve"]) as new:
                assert await old.do("seal") == "FAILED_PRECONDITION"
                assert len(process.store.leases.writes) == 1
                assert await new.do("seal") == "ok"
        await until(lambda: nothing_is_held(process))
        process.store.check()


async def test_report_7_a_stale_seal_is_refused_by_its_generation() -> None:
    async with local_store(settings()) as (process, target):
        async with victim(target, ["stage", "reserve"]) as old:
            (lease,) = process.store.leases.writes.values()
            lease.generation += 1
            assert await old.do("seal") == "FAILED_PRECONDITION"
            assert process.store.leases.writes
        process.store.check()


@pytest.mark.parametrize("point", POINTS)
async def test_a_store_killed_at_any_point_serves_nothing_torn_and_loses_nothing_spilled(
    tmp_path: Path, point: str
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"), die_at=point)
    async with store_child(tmp_path) as child:
        await child.start(chosen)
        async with worker(child.target) as one:
            await one.put(ids(512))  # the first round is let through
            flushed = await one.client.flush()
            assert flushed is None or flushed.ok
            await one.put(ids(1024), first_block=2)  # dies
            await one.client.flush()
            assert await child.ended() == -signal.SIGKILL
            assert await one.matched(ids(1100)) == 0  # a miss, and no error
            await child.kill()
            await child.start(settings(folder=str(tmp_path / "disk")))
            async with asyncio.timeout(PATIENCE_S):
                await one.client.linked()
            restored = await one.read(ids(1100))
            is_published = point in {"files.link:2", "spill.written:2"}
            assert restored == (1024 if is_published else 512)
            (answer,) = await one.put(ids(1024), first_block=2)
            assert isinstance(answer, Published)
            assert answer.existed == is_published
            assert await one.read(ids(1100)) == 1024
            flushed = await one.client.flush()
            assert flushed is not None
            assert flushed.ok
        await child.stop()


async def test_report_8_b026_ten_quick_restarts_lose_nothing(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with store_child(tmp_path) as child:
        await child.start(chosen)
        async with worker(child.target) as one:
            await one.put(ids(1000))
            await one.client.flush()
            for _ in range(10):
                await child.kill()
                await until(lambda: one.client.link is None)
                await child.start(chosen)
                async with asyncio.timeout(PATIENCE_S):
                    await one.client.linked()
                assert await one.read(ids(1001)) == 1000
        await child.stop()


async def test_a_store_that_is_gone_is_a_miss_within_the_wait(tmp_path: Path) -> None:
    async with store_child(tmp_path) as child:
        await child.start(settings())
        async with worker(child.target) as one:
            await one.put(ids(600))
            match = await one.match(ids(600))
            assert match is not None
            lease = await one.client.acquire(match)
            assert lease is not None
            staged = one.client.stage(100)
            assert staged is not None
            child.process.send_signal(signal.SIGSTOP)
            started_s = monotonic()
            chains = b""
            assert await one.client.match(one.root, chains, ids(10), timeout_s=0.25) is None
            assert await one.client.acquire(match, timeout_s=0.25) is None
            assert monotonic() - started_s < 2.0
            child.process.send_signal(signal.SIGCONT)
            await child.kill()
            await until(lambda: one.client.link is None)
            assert await one.match(ids(600)) is None
            assert await one.client.acquire(match) is None
            assert one.client.stage(100) is None
            assert not lease.is_held
            assert all(lease.verify(part) for part in lease.parts)  # the maps are still there
            staged.view[:] = bytes(len(staged.view))
            staged.release()
            lease.release()
