"""A start removes nothing: what is over the budget leaves once the store is used, bit by bit."""

from pathlib import Path

import pytest

from bramley.cachestore.spill import Spiller
from support.store import PART_BYTES, ids, local_store, settings, until, worker

PROMPTS = 24


def object_files(folder: Path) -> list[Path]:
    return [*folder.rglob("*.kvx")]


async def fill(folder: Path) -> None:
    async with local_store(settings(folder=str(folder))) as (_, target), worker(target) as one:
        for seed in range(PROMPTS):
            await one.put(ids(512, seed))
        await one.client.flush()


async def test_what_is_over_the_budget_stays_until_the_store_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path)
    budget = 1 << 20
    chosen = settings(folder=str(tmp_path), disk_bytes=budget)
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        over = process.store.gauges()["ssd_over_budget_bytes"]
        assert over > 0
        assert "over budget" in caplog.messages
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        assert len(object_files(tmp_path)) == PROMPTS
        assert not process.store.counts["evicted_from_disk"]
        assert await one.matched(ids(513, PROMPTS - 1)) == 512  # the newest
        await until(lambda: process.store.gauges()["ssd_over_budget_bytes"] == 0)
        await until(lambda: process.store.gauges()["ssd_bytes"] <= 0.8 * budget)
        assert await one.matched(ids(513, PROMPTS - 1)) == 512
        assert await one.matched(ids(513)) == 0
        process.store.check()


async def test_the_event_loop_goes_on_between_two_that_leave(tmp_path: Path) -> None:
    await fill(tmp_path)
    chosen = settings(folder=str(tmp_path), disk_bytes=1 << 20)
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        await one.matched(ids(513))
        seen: set[int] = set()

        def is_done() -> bool:
            seen.add(process.store.counts["evicted_from_disk"])
            return process.store.gauges()["ssd_bytes"] <= 0.8 * (1 << 20)

        while not is_done():
            await one.matched(ids(513))
        assert len(seen) > 2


async def test_a_write_makes_the_room_that_it_needs_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)

    async def never(_: Spiller) -> bool:
        return False

    monkeypatch.setattr(Spiller, "_trim", never)
    budget = 1 << 20
    chosen = settings(folder=str(tmp_path), disk_bytes=budget)
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        await one.put(ids(512, 99))
        await until(lambda: process.store.counts["spilled"] == 1)
        assert process.store.gauges()["ssd_bytes"] <= budget


async def test_what_is_not_ours_is_left_alone_and_counted(tmp_path: Path) -> None:
    await fill(tmp_path)
    newer, other = object_files(tmp_path)[:2]
    newer.write_bytes(newer.read_bytes().replace(b'"reader":"1"', b'"reader":"9"', 1))
    (tmp_path / "ns" / "notes.txt").write_text("mine")
    (tmp_path / "ns" / "elsewhere").mkdir()
    size = other.stat().st_size
    chosen = settings(folder=str(tmp_path))
    async with local_store(chosen, epoch=2) as (process, _):
        gauges = process.store.gauges()
        assert gauges["foreign_files"] == 2
        assert gauges["quarantine_bytes"] > 0  # its sum does not hold: damaged, not newer
        assert gauges["objects"] == PROMPTS - 1
    assert (tmp_path / "ns" / "notes.txt").read_text() == "mine"
    assert size > PART_BYTES


async def test_an_object_without_what_it_follows_is_counted_and_leaves_first(
    tmp_path: Path,
) -> None:
    chosen = settings(folder=str(tmp_path))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512))
        await one.put(ids(1024), first_block=2)
        await one.client.flush()
        await one.put(ids(512, 1))
        await one.client.flush()
    first = min(object_files(tmp_path), key=lambda file: file.stat().st_mtime_ns)
    first.unlink()
    async with local_store(chosen, epoch=2) as (process, target), worker(target) as one:
        assert process.store.gauges()["orphans"] == 1
        tiers = process.store.tiers
        victim = tiers.order.disk_victim(tiers.is_free)
        assert victim is not None
        assert victim.end_token == 1024
        await one.put(ids(512))
        assert process.store.gauges()["orphans"] == 0
        assert await one.read(ids(1025)) == 1024
