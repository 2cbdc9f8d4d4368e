"""Asks the node's cache store, and follows what comes to it and goes; without one, says so.

A call opens a channel of its own: there are few of them, and the store may be another
incarnation at the next one.
"""

import logging

import grpc

from bramley.common.errors import NotLoaded, StoreLost
from bramley.common.logs import facts
from bramley.common.rpc import open_channel
from bramley.protos.v1 import cachestore_pb2, cachestore_pb2_grpc, router_pb2
from bramley.router.attempts import is_lost
from bramley.router.prefixes import Gap, StoreView
from bramley.router.reconnect import Backoff

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0


def address_of(told: str) -> str:
    """Check the address that the node told of its store.

    Returns:
        The same.

    Raises:
        NotLoaded: there is none: no store runs.
    """
    if not told:
        raise NotLoaded("the node runs no cache store now", reason="NO_STORE")
    return told


async def flush(
    address: str, root: bytes, timeout_s: float | None
) -> router_pb2.FlushCacheResponse:
    """Have a namespace on the medium, or all of them if ``root`` is empty.

    Returns:
        What is there, and what could not be written.

    Raises:
        StoreLost: the store died under the call.
        AioRpcError: it answered with an error.
    """
    async with open_channel(address) as channel:
        stub = cachestore_pb2_grpc.CacheStoreServiceStub(channel)
        try:
            told = await stub.Flush(cachestore_pb2.FlushRequest(root=root), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if not is_lost(error):
                raise
            raise StoreLost(
                "the cache store died under the request", retry_after_s=RETRY_AFTER_S
            ) from error
    return router_pb2.FlushCacheResponse(
        ok=told.ok,
        pending=told.pending,
        refused=told.refused,
        failed=told.failed,
        missing=told.missing,
        bytes=told.bytes,
        longest_prefix_tokens=told.longest_prefix_tokens,
    )


def together(answers: list[router_pb2.FlushCacheResponse]) -> router_pb2.FlushCacheResponse:
    """Add the answers of several namespaces up."""
    return router_pb2.FlushCacheResponse(
        ok=all(answer.ok for answer in answers),
        pending=sum(answer.pending for answer in answers),
        refused=sum(answer.refused for answer in answers),
        failed=sum(answer.failed for answer in answers),
        missing=sum(answer.missing for answer in answers),
        bytes=sum(answer.bytes for answer in answers),
        longest_prefix_tokens=max(answer.longest_prefix_tokens for answer in answers),
    )


async def follow(address: str, view: StoreView, backoff: Backoff) -> None:
    """Keep a view of what a store holds, until it ends or cannot be told on from where it was."""
    async with open_channel(address) as channel:
        stub = cachestore_pb2_grpc.CacheStoreServiceStub(channel)
        call = stub.Watch(
            cachestore_pb2.CacheStoreServiceWatchRequest(after_sequence=view.sequence)
        )
        try:
            async for told in call:
                backoff.reset()
                _take(view, told)
        except Gap as gap:
            log.info("the view of the store begins anew", extra=facts(gap=gap))
            view.reset(0, 0)
        finally:
            call.cancel()


def _take(view: StoreView, told: cachestore_pb2.CacheStoreServiceWatchResponse) -> None:
    if told.reset:
        view.reset(told.epoch, told.sequence)
        return
    tier = "ram" if told.tier == cachestore_pb2.TIER_RAM else "ssd"
    view.apply(told.epoch, told.sequence, told.stored_hashes, told.removed_hashes, tier)
