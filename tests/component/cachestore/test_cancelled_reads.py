"""A reader that leaves while the store's answer is on its way leaves no lease behind."""

import asyncio
from typing import Any

import pytest

from bramley.cachestore.client import StoreClient
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import ids, local_store, settings, worker

TOKENS = 700


class _Slow:
    """The store's client, whose answer to Acquire is on its way until it is let through."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.granted = asyncio.Event()
        self.arrives = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def Acquire(self, request: Any, **options: Any) -> pb.AcquireResponse:  # noqa: N802
        answer = await self._stub.Acquire(request, **options)
        self.granted.set()
        await self.arrives.wait()
        return answer


def slowed(client: StoreClient, monkeypatch: pytest.MonkeyPatch) -> _Slow:
    link = client.link
    assert link is not None
    slow = _Slow(link.stub)
    monkeypatch.setattr(link, "stub", slow)
    return slow


@pytest.mark.parametrize("how", ["leaves", "has waited long enough"])
async def test_who_stops_waiting_for_a_lease_that_is_granted_holds_none(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with local_store(settings()) as (process, target), worker(target) as one:
        await one.put(ids(TOKENS))
        match = await one.match(ids(TOKENS + 1))
        assert match is not None
        slow = slowed(one.client, monkeypatch)
        wait_s = 30.0 if how == "leaves" else 0.2
        acquiring = asyncio.create_task(one.client.acquire(match, timeout_s=wait_s))
        await slow.granted.wait()
        held = process.store.leases.reads
        assert len(held) == 1
        if how == "leaves":
            acquiring.cancel()
        await asyncio.wait([acquiring])
        assert acquiring.cancelled() or acquiring.result() is None
        slow.arrives.set()
        async with asyncio.timeout(5.0):
            while held:  # noqa: ASYNC110 another process's, as a rule
                await asyncio.sleep(0.01)
