"""CacheStoreService's promises on the wire: versions, fences, refusals, health, metrics."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from bramley.cachestore import keys, wire
from bramley.cachestore.passing import Greeting, What, connect, receive, user_of
from bramley.cachestore.process import SERVICE, StoreProcess
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub
from support.store import identity, ids, local_store, settings, until, worker

if TYPE_CHECKING:
    from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceAsyncStub

KV = pb.StateGroup(name="kv", required=True, sliceable=True)
HELLO = pb.HelloRequest(
    protocol_version=1, connection_id="c", transports=[pb.TRANSPORT_SHARED_MEMORY]
)


@asynccontextmanager
async def served() -> "AsyncGenerator[tuple[StoreProcess, str, CacheStoreServiceAsyncStub]]":
    """Serve a small store: it, its target and a stub."""
    async with local_store(settings()) as (process, target), open_channel(target) as channel:
        yield process, target, CacheStoreServiceStub(channel)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """Wait for a call to be refused: its code and reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), RemoteError(caught.value).reason


async def test_another_protocol_is_refused_loudly() -> None:
    async with served() as (_, _, stub):
        hello = pb.HelloRequest(protocol_version=2, connection_id="c")
        code, reason = await refusal(stub.Hello(hello))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_MISMATCH")
        answer = await stub.Hello(HELLO)
        assert answer.epoch == 1
        assert answer.transport == pb.TRANSPORT_SHARED_MEMORY
        assert answer.store_id


async def test_who_is_not_on_the_data_socket_gets_no_lease() -> None:
    async with served() as (_, _, stub):
        root = (
            await stub.OpenNamespace(
                pb.OpenNamespaceRequest(identity=wire.identity_message(identity()), groups=[KV])
            )
        ).root
        code, reason = await refusal(stub.Acquire(pb.AcquireRequest(root=root)))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_CONNECTED")
        code, reason = await refusal(stub.Reserve(pb.ReserveRequest(root=root)))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_CONNECTED")


async def test_nobody_renews_what_the_store_itself_holds() -> None:
    async with served() as (process, _, stub):
        lease = process.store.leases.read("", ["x"], float("inf"))
        code, _ = await refusal(stub.Touch(pb.TouchRequest(lease_ids=[lease.id])))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert lease.deadline_s == float("inf")
        process.store.release(lease.id)


async def test_a_namespace_is_opened_before_it_is_asked() -> None:
    async with served() as (_, _, stub):
        code, reason = await refusal(stub.Match(pb.MatchRequest(root=bytes(32))))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NAMESPACE_NOT_OPEN")


async def test_the_data_socket_gives_staging_then_the_ram_tier_read_only() -> None:
    async with served() as (_, target, stub):
        async with worker(target) as one:
            await one.put(ids(256))
        hello = await stub.Hello(HELLO)
        peer = await connect(hello.data_socket, Greeting("c"))
        assert user_of(peer) == os.geteuid()
        staging, segment, ready = [await receive(peer) for _ in range(3)]
        assert (staging.what, staging.size) == (What.STAGING, hello.staging_bytes)
        assert segment.what is What.ARENA
        assert ready.what is What.READY
        for told in (staging, segment):
            assert told.fd is not None
            os.close(told.fd)
        peer.close()


def seal(lease: pb.Reservation, **fields: Any) -> pb.SealRequest:
    chains = keys.chain(keys.root(identity()), ids(256))
    usual: dict[str, Any] = {
        "lease_id": lease.lease_id,
        "generation": lease.generation,
        "block_hashes": chains,
        "token_ids_le": ids(256),
        "checksums": bytes(16),
    }
    return pb.SealRequest(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_hashes": bytes(32)}, "block_hashes"),
        ({"block_hashes": b""}, "block_hashes"),
        ({"token_ids_le": ids(255)}, "token_ids_le"),
        ({"checksums": bytes(32)}, "checksums"),
        ({}, "checksums"),
        ({"source": pb.Segment(segment_id=999, bytes=16384)}, "source"),
    ],
)
async def test_what_is_sealed_is_what_was_reserved_and_summed(
    fields: dict[str, Any], field: str
) -> None:
    async with served() as (process, target, stub), worker(target) as one:
        assert one.client.link is not None
        request = pb.ReserveRequest(
            root=one.root,
            connection_id=one.client.link.id,
            kind=pb.OBJECT_KIND_EXTENT,
            group="kv",
            tokens=256,
            bytes=100,
        )
        lease = (await stub.Reserve(request)).reservation
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Seal(seal(lease, **fields))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert RemoteError(caught.value).field == field
        aborting = pb.CacheStoreServiceAbortRequest(
            lease_id=lease.lease_id, generation=lease.generation
        )
        await stub.Abort(aborting)
        await stub.Abort(aborting)  # twice does no harm
        assert await one.matched(ids(300)) == 0
        assert (await one.idle())["aborted"] == 1
        process.store.check()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": pb.OBJECT_KIND_UNSPECIFIED}, "kind"),
        ({"kind": pb.OBJECT_KIND_STATE}, "kind"),
        ({"group": "other"}, "group"),
        ({"tokens": 100}, "tokens"),
        ({"tokens": 65 * 256}, "tokens"),
        ({"kind": pb.OBJECT_KIND_TAIL, "tokens": 256}, "tokens"),
        ({"bytes": 0}, "bytes"),
        ({"tokens": 512, "bytes": 101}, "bytes"),
        ({"parent": b"short"}, "parent"),
        ({"first_token": 3}, "parent"),
    ],
)
async def test_what_is_no_object_of_the_namespace_is_not_reserved(
    fields: dict[str, Any], field: str
) -> None:
    async with served() as (_, target, stub), worker(target) as one:
        assert one.client.link is not None
        usual: dict[str, Any] = {
            "root": one.root,
            "connection_id": one.client.link.id,
            "kind": pb.OBJECT_KIND_EXTENT,
            "group": "kv",
            "tokens": 256,
            "bytes": 100,
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Reserve(pb.ReserveRequest(**{**usual, **fields}))
        assert RemoteError(caught.value).field == field


async def test_an_unwritten_inline_payload_is_not_sealed() -> None:
    async with served() as (_, target, stub), worker(target, inline=True) as one:
        assert one.client.link is not None
        lease = pb.Reservation(lease_id=5, generation=5)
        request = pb.WriteRequest(lease_id=lease.lease_id, generation=1, data=b"x")

        async def pieces() -> AsyncGenerator[pb.WriteRequest]:
            yield request

        code, reason = await refusal(stub.Write(pieces()))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_LEASE")
        code, reason = await refusal(stub.Seal(seal(lease)))
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_LEASE")


async def test_an_abandoned_reserve_holds_nothing() -> None:
    async with served() as (process, target, stub), worker(target) as one:
        assert one.client.link is not None
        request = pb.ReserveRequest(
            root=one.root,
            connection_id=one.client.link.id,
            kind=pb.OBJECT_KIND_EXTENT,
            group="kv",
            tokens=256,
            bytes=4 << 20,
        )
        for _ in range(10):
            call = stub.Reserve(request)
            await until(lambda: True)
            call.cancel()
        await until(lambda: process.store.counts["aborted"] == process.store.counts["reserved"])
        process.store.check()


async def test_health_and_metrics_tell_of_the_store() -> None:
    async with (
        local_store(settings(http="127.0.0.1:0")) as (process, target),
        open_channel(target) as channel,
        worker(target) as one,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        told = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert told.status == health_pb2.HealthCheckResponse.SERVING
        await one.put(ids(600))
        await one.read(ids(600))
        await one.idle()
        text = await _get(f"http://{process.addresses['http']}/metrics")
        shown = {
            (sample.name.removeprefix("bramley_cachestore_"), *sample.labels.values()): (
                sample.value
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert shown["reservations_total", "sealed"] == 2
        assert shown["matches_total", "hit"] == 1
        assert shown["acquired_objects_total", "ram"] == 2
        assert shown["read_leases",] == 0
        assert shown["objects",] == 2


async def _get(url: str) -> str:
    def get() -> str:
        with urlopen(url) as response:  # noqa: S310
            return response.read().decode()

    return await asyncio.to_thread(get)
