"""The router's calls to its node's supervisor: start, stop and kill workers, follow processes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc

from bramley.common.rpc import open_channel
from bramley.protos.v1 import node_pb2, node_pb2_grpc
from bramley.router.reconnect import Backoff

CALL_S = 10.0
NOT_SERVED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)


class Node:
    """One node.

    Args:
        target: of its NodeService; empty if there is none.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def __bool__(self) -> bool:
        return bool(self._target)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Hold a channel to it for the length of the block.

        Yields:
            Once calls may be made.
        """
        async with open_channel(self._target) as channel:
            self._stub = node_pb2_grpc.NodeServiceStub(channel)
            yield

    async def watch(self) -> AsyncGenerator[node_pb2.WatchResponse]:
        """Follow its processes and the router's settings.

        Yields:
            All of them, at once and at each change.

        Raises:
            AioRpcError: it is away.
        """
        call = self._stub.Watch(node_pb2.WatchRequest())
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def start(self, spec: node_pb2.WorkerSpec, *, now: bool, pinned: bool) -> None:
        """Make a worker wanted.

        Raises:
            AioRpcError: it refuses, or is away.
        """
        request = node_pb2.StartWorkerRequest(spec=spec, now=now, pinned=pinned)
        await self._stub.StartWorker(request, timeout=CALL_S)

    async def stop(self, name: str) -> None:
        """Make a worker unwanted, and wait until it is gone, however long the node is away."""
        backoff = Backoff()
        while True:
            try:
                await self._stub.StopWorker(node_pb2.StopWorkerRequest(name=name))
            except grpc.aio.AioRpcError as error:
                if error.code() in NOT_SERVED:
                    return
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def kill(self, name: str, epoch: int, reason: str) -> bool:
        """Kill one incarnation.

        Returns:
            Whether it is no more; False while the node is away.
        """
        request = node_pb2.KillWorkerRequest(name=name, epoch=epoch, reason=reason)
        try:
            await self._stub.KillWorker(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            return error.code() in NOT_SERVED
        return True
