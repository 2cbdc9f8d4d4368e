"""Open sessions in a store with little room: their newest objects leave last."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bramley.cachestore import sessions
from bramley.cachestore.matching import Group
from bramley.cachestore.process import StoreProcess
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import KV, Worker, ids, local_store, settings, until, worker

STATES = Group("recurrent", required=True, sliceable=False)
PART_BYTES = 500_000
OTHERS = 12  # prompts of two blocks each, in a tier that holds four


@asynccontextmanager
async def small(folder: Path | None = None) -> AsyncGenerator[tuple[StoreProcess, Worker]]:
    """A store of 4 MiB of RAM, or as much disk, and a worker."""
    if folder is None:
        chosen = settings(ram_bytes=4 << 20)
    else:
        chosen = settings(folder=str(folder / "disk"), ram_bytes=4 << 20, disk_bytes=4 << 20)
    async with local_store(chosen) as (process, target), worker(target) as one:
        yield process, one
        process.store.check()


async def flood(one: Worker, first: int = 1) -> None:
    for seed in range(first, first + OTHERS):
        await one.put(ids(512, seed), part_bytes=PART_BYTES)
        await one.client.flush()


@pytest.mark.parametrize("on_disk", [False, True])
async def test_an_open_session_outlasts_whatever_others_store(
    tmp_path: Path, on_disk: bool
) -> None:
    async with small(tmp_path if on_disk else None) as (process, one):
        await one.put(ids(256), part_bytes=PART_BYTES)  # of nobody
        await one.put(ids(512), first_block=1, part_bytes=PART_BYTES, session_key="s")
        await flood(one)
        assert await one.read(ids(513)) == 512
        assert await one.client.close_session(one.root, "s")
        assert not await one.client.close_session(one.root, "s")
        await flood(one, 20)
        assert await one.matched(ids(513)) == 0
        assert process.store.gauges()["sessions"] == 0


async def test_its_older_objects_leave_before_its_newest() -> None:
    async with small() as (_, one):
        for seed in range(1, OTHERS):
            await one.put(ids(512, seed), part_bytes=PART_BYTES, session_key="s")
            await one.put(ids(512, 99), part_bytes=PART_BYTES, session_key="t")
        assert await one.matched(ids(513, OTHERS - 1)) == 512
        assert await one.matched(ids(513, 99)) == 512
        assert await one.matched(ids(513, 1)) == 0


async def test_a_session_that_was_idle_too_long_is_not_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with small() as (process, one):
        await one.put(ids(512), part_bytes=PART_BYTES, session_key="s")
        assert process.store.gauges()["sessions"] == 1
        monkeypatch.setattr(sessions, "IDLE_S", 0.0)
        await until(lambda: process.store.gauges()["sessions"] == 0)
        await flood(one)
        assert await one.matched(ids(513)) == 0


async def test_only_sessions_leave_where_there_is_nothing_else() -> None:
    async with small() as (_, one):
        for seed in range(OTHERS):
            await one.put(ids(512, seed), part_bytes=PART_BYTES, session_key=f"{seed}")
        assert await one.matched(ids(513, OTHERS - 1)) == 512
        assert await one.matched(ids(513, 0)) == 0


async def test_what_was_said_is_recalled_after_a_restart(tmp_path: Path) -> None:
    chosen = settings(folder=str(tmp_path / "disk"))
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512))
        await one.put(ids(700), first_block=2, session_key="s")
        await one.client.flush()
    async with local_store(chosen, epoch=2) as (_, target), worker(target) as one:
        recalled = await one.client.recall(one.root, "s", 16)
        assert recalled is not None
        assert [(told.token_ids_le, told.first_token) for told in recalled] == [(ids(700), 0)]
        request = pb.RecallRequest(root=one.root, session_key="s")
        link = one.client.link
        assert link is not None
        assert not (await link.stub.Recall(request)).sequences  # none was asked for


async def test_states_of_a_session_are_recalled_along_the_blocks() -> None:
    async with (
        local_store(settings()) as (_, target),
        worker(target, groups=[KV, STATES]) as one,
    ):
        await one.put(ids(512), session_key="s")
        await one.put_state(ids(600), "recurrent", session_key="s")
        recalled = await one.client.recall(one.root, "s", 16)
        assert recalled is not None
        assert [told.token_ids_le for told in recalled] == [ids(600)]


async def test_without_a_store_there_is_nothing_to_recall(tmp_path: Path) -> None:
    async with small() as (_, one):
        pass
    assert await one.client.recall(one.root, "s", 16) is None
    assert not await one.client.close_session(one.root, "s")
