"""A store that is there and does not answer, or goes under a call: a miss, and hardly a wait."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from time import monotonic

import pytest

from bramley.cachestore import link as links
from bramley.cachestore.client import StoreClient
from bramley.cachestore.exchange import Refusal
from bramley.cachestore.server import StoreServer
from support.store import KV, PATIENCE_S, Worker, identity, ids, local_store, settings, store_child
from support.store import worker as connected


async def test_a_stopped_store_costs_one_wait_and_is_used_again_at_once(tmp_path: Path) -> None:
    async with store_child(tmp_path) as child:
        await child.start(settings())
        client = StoreClient.connect(child.target, "test", wait_s=0.25)
        async with asyncio.timeout(PATIENCE_S):
            await client.linked()
        one = Worker(client, await client.open_namespace(identity(), [KV]))
        await one.put(ids(600))
        assert await client.match(one.root, b"", ids(10)) is not None  # the first may wait longer
        os.kill(child.process.pid, signal.SIGSTOP)
        began_s = monotonic()
        for _ in range(20):
            assert await client.match(one.root, b"", ids(10)) is None
        waited_s = monotonic() - began_s
        assert client.stage(100) is None
        os.kill(child.process.pid, signal.SIGCONT)
        assert 0.2 < waited_s < 1.0
        async with asyncio.timeout(2.0):
            while await one.matched(ids(600)) != 599:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await client.close()
        await child.stop()


async def test_a_lease_released_while_the_store_stands_still_ends_once_it_goes_on(
    tmp_path: Path,
) -> None:
    async with store_child(tmp_path) as child:
        await child.start(settings())
        client = StoreClient.connect(child.target, "test", wait_s=0.1)
        async with asyncio.timeout(PATIENCE_S):
            await client.linked()
        one = Worker(client, await client.open_namespace(identity(), [KV]))
        await one.put(ids(600))
        match = await one.match(ids(600))
        assert match is not None
        lease = await client.acquire(match)
        assert lease is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        lease.release()
        assert await client.match(one.root, b"", ids(10)) is None  # so long that calls are given up
        await asyncio.sleep(0.3)
        os.kill(child.process.pid, signal.SIGCONT)
        async with asyncio.timeout(2.0):
            while (told := await client.stats()) is None or told.gauges["read_leases"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await client.close()
        await child.stop()


async def test_a_store_that_comes_back_is_found_within_half_a_second(tmp_path: Path) -> None:
    async with store_child(tmp_path) as child:
        await child.start(settings())
        client = StoreClient.connect(child.target, "test")
        async with asyncio.timeout(PATIENCE_S):
            await client.linked()
            await child.kill()
            await asyncio.sleep(2.0)
            assert client.link is None
            await child.start(settings())
            began_s = monotonic()
            await client.linked()
        assert monotonic() - began_s < 1.0
        await client.close()
        await child.stop()


async def test_calls_over_a_channel_that_was_closed_are_misses() -> None:
    async with local_store(settings()) as (_, target), connected(target) as one:
        await one.put(ids(600))
        match = await one.match(ids(600))
        assert match is not None
        lease = await one.client.acquire(match)
        assert lease is not None
        assert one.client.link is not None
        await one.client.link.channel.close()
        assert await one.client.match(one.root, b"", ids(10)) is None
        assert await one.client.acquire(match) is None
        assert await one.put(ids(256, 1)) == [Refusal("STORE_LOST")]
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
        lease.release()
        await asyncio.sleep(0.1)
        assert not errors


async def test_a_call_that_the_end_of_the_link_cuts_off_is_a_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(PATIENCE_S)

    monkeypatch.setattr(StoreServer, "Match", never)
    monkeypatch.setattr(links, "CLOSE_S", 0.1)
    async with local_store(settings()) as (_, target), connected(target) as one:
        waiting = asyncio.create_task(one.matched(ids(600)))
        await asyncio.sleep(0.1)
        assert one.client.link is not None
        one.client.link.peer.shutdown(socket.SHUT_RDWR)
        async with asyncio.timeout(2.0):
            assert await waiting == 0
        waiting = asyncio.create_task(one.matched(ids(600)))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
