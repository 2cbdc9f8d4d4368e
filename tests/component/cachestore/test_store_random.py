"""Whatever workers do, in whatever order: only what was stored is read, and all counts balance."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from bramley.cachestore.exchange import Published
from support.store import Worker, ids, local_store, settings, until, worker


async def turn(one: Worker, draw: random.Random) -> None:
    """Do what a worker does for one request: match, restore, publish what was new."""
    tokens = ids(draw.randrange(1, 1500), draw.randrange(6))
    if draw.random() < 0.5:  # a prompt that leaves another one somewhere
        tokens = tokens[: draw.randrange(0, len(tokens) // 4) * 4] + ids(
            draw.randrange(1, 700), draw.randrange(6, 12)
        )
    restored = await one.read(tokens)
    assert restored < len(tokens) // 4
    await one.put(tokens, first_block=restored // 256, part_bytes=200_000)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_disk", [True, False], ids=["disk", "ram"])
async def test_whatever_workers_do_nothing_wrong_is_read(
    tmp_path: Path, seed: int, with_disk: bool
) -> None:
    draw = random.Random(seed)  # noqa: S311
    folder = str(tmp_path / "disk") if with_disk else ""
    chosen = settings(folder=folder, ram_bytes=5 << 20, disk_bytes=10 << 20)
    async with local_store(chosen) as (process, target), worker(target) as other:
        for _ in range(4):
            async with worker(target) as one:
                turns = [turn(draw.choice((one, other)), draw) for _ in range(12)]
                await asyncio.gather(*turns)
        await other.idle()
        await other.client.flush()
        process.store.check()
        counts = process.store.counts
        assert counts["reserved"] == counts["sealed"] + counts["aborted"]
        assert counts["sealed"] > 10
        assert not counts["corrupt"]
        assert not counts["corrupt_seals"]
        assert process.store.gauges()["ram_segment_bytes"] <= 5 << 20
        if with_disk:
            assert process.store.gauges()["ssd_bytes"] <= 10 << 20


async def test_a_folder_that_goes_while_the_store_runs_costs_only_the_disk(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (process, target), worker(target) as one:
        await one.put(ids(512))
        await one.client.flush()
        shutil.rmtree(tmp_path / "disk")
        (answer,) = await one.put(ids(1024), first_block=2)
        assert isinstance(answer, Published)
        await until(lambda: process.store.gauges()["ssd_is_failing"] == 1)
        assert process.store.gauges()["pending"] == 1  # it waits for the folder to come back
        assert await one.read(ids(1100)) == 1024
        await one.idle()
        process.store.check()
