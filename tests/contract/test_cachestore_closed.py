"""A session that was closed is forgotten: nobody recalls what was said in it, whoever asks."""

from typing import TYPE_CHECKING

from bramley.cachestore import closed
from bramley.common.rpc import open_channel
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub
from support.store import Worker, ids, local_store, settings, worker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from bramley.cachestore.catalogue import Entry
    from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceAsyncStub


async def said(
    stub: "CacheStoreServiceAsyncStub", one: Worker, session: str
) -> list[tuple[bytes, int]]:
    request = pb.RecallRequest(root=one.root, session_key=session, limit=16)
    told = (await stub.Recall(request)).sequences
    return [(each.token_ids_le, each.first_token) for each in told]


async def test_a_closed_session_is_not_recalled_but_its_prompts_are_found() -> None:
    async with (
        local_store(settings()) as (_, target),
        open_channel(target) as channel,
        worker(target) as one,
    ):
        stub = CacheStoreServiceStub(channel)
        await one.put(ids(512), session_key="s")
        await one.put(ids(300, seed=5), session_key="t")
        assert await said(stub, one, "s") == [(ids(512), 0)]
        assert await one.client.close_session(one.root, "s")
        assert await said(stub, one, "s") == []
        assert await said(stub, one, "") == []
        assert await said(stub, one, "t") == [(ids(300, seed=5), 0)]
        assert await one.matched(ids(513)) == 512
        assert not await one.client.close_session(one.root, "s")


async def test_what_a_session_stores_after_it_was_closed_is_recalled_with_what_it_follows() -> None:
    async with (
        local_store(settings()) as (_, target),
        open_channel(target) as channel,
        worker(target) as one,
    ):
        stub = CacheStoreServiceStub(channel)
        await one.put(ids(512), session_key="s")
        await one.put(ids(256, seed=4), session_key="s")
        await one.client.close_session(one.root, "s")
        await one.put(ids(700), first_block=2, session_key="s")
        assert await said(stub, one, "s") == [(ids(700), 0)]
        assert await one.client.close_session(one.root, "s")
        assert await said(stub, one, "s") == []


async def test_a_session_that_only_the_disk_knew_is_forgotten_too_once_it_is_closed(
    tmp_path: "Path",
) -> None:
    chosen = settings(folder=f"{tmp_path}/disk")
    async with local_store(chosen) as (_, target), worker(target) as one:
        await one.put(ids(512), session_key="s")
        await one.client.flush()
    async with (
        local_store(chosen, epoch=2) as (_, target),
        open_channel(target) as channel,
        worker(target) as one,
    ):
        stub = CacheStoreServiceStub(channel)
        assert await said(stub, one, "s") == [(ids(512), 0)]
        assert await one.client.close_session(one.root, "s")  # no session that is open
        assert await said(stub, one, "s") == []


async def test_no_more_closed_sessions_are_remembered_than_have_something_stored(
    monkeypatch: "pytest.MonkeyPatch",
) -> None:
    monkeypatch.setattr(closed, "_LOOK_THROUGH_AT", 2)
    async with local_store(settings()) as (process, target), worker(target) as one:
        known = closed.Closed(process.store.tiers.catalogue)
        for number in range(4):
            await one.put(ids(256, seed=number), session_key=f"{number}")
        for number in range(3):
            assert known.close(one.root, f"{number}", 2e10)
        assert len(known) == 3
        for number in range(3):
            found = process.store.tiers.catalogue.of_session(one.root, f"{number}")
            process.store.tiers.discard(found[0], "evicted_clean")
        for number in range(3, 7):
            await one.put(ids(256, seed=number), session_key=f"{number}")
            assert known.close(one.root, f"{number}", 2e10)
        assert len(known) == 4
        assert not known.close(one.root, "never", 2e10)


async def test_closed_sessions_are_looked_through_once_they_are_twice_as_many(
    monkeypatch: "pytest.MonkeyPatch",
) -> None:
    monkeypatch.setattr(closed, "_LOOK_THROUGH_AT", 2)
    async with local_store(settings()) as (process, target), worker(target) as one:
        catalogue = process.store.tiers.catalogue
        known = closed.Closed(catalogue)
        for number in range(12):
            await one.put(ids(256, seed=number), session_key=f"{number}")
        looked = 0
        of_session = catalogue.of_session

        def look(root: bytes, session_key: str) -> "list[Entry]":
            nonlocal looked
            looked += 1
            return of_session(root, session_key)

        monkeypatch.setattr(catalogue, "of_session", look)
        for number in range(12):
            assert known.close(one.root, f"{number}", 2e10)
        assert looked == 12 + 3 + 7  # each for itself, and all of them twice
