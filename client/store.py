"""Asks a node's cache store itself, past the router: its counts, and proof of its bytes."""

from collections.abc import Callable, Iterator

import grpc

from bramley.client import replies
from bramley.client.cache import StoreStats, Verified
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.protos.v1 import cachestore_pb2
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub

_OBJECTS_A_CALL = 8


def stats(target: str, timeout_s: float) -> StoreStats:
    """Read the counts of the store at ``target``.

    Returns:
        All of them.

    Raises:
        RemoteError: it did not answer in time.
    """
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel, replies.remote_errors():
        stub = CacheStoreServiceStub(channel)
        told = stub.Stats(cachestore_pb2.StatsRequest(), timeout=timeout_s)
    return StoreStats(counters=dict(told.counters), gauges=dict(told.gauges))


def verify(target: str, on_progress: Callable[[float], None]) -> Verified:
    """Have the store at ``target`` read all of its bytes; it sets damaged ones aside.

    Args:
        target: gRPC target.
        on_progress: told the share that is done, 0 to 1.

    Returns:
        What was found.

    Raises:
        RemoteError: it did not answer.
    """
    proved, corrupt = 0, list[str]()
    with grpc.insecure_channel(target, options=CHANNEL_OPTIONS) as channel, replies.remote_errors():
        stub = CacheStoreServiceStub(channel)
        object_ids = list(_object_ids(stub))
        for position in range(0, len(object_ids), _OBJECTS_A_CALL):
            on_progress(position / len(object_ids))
            some = object_ids[position : position + _OBJECTS_A_CALL]
            told = stub.Verify(cachestore_pb2.VerifyRequest(object_ids=some))
            proved += told.objects
            corrupt += told.corrupt_object_ids
    return Verified(objects=proved, corrupt=corrupt)


def _object_ids(stub: CacheStoreServiceStub) -> Iterator[str]:
    last = ""
    while page := stub.List(cachestore_pb2.ListRequest(after_object_id=last)).objects:
        yield from (each.object_id for each in page)
        last = page[-1].object_id
