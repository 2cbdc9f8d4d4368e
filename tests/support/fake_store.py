"""A cache store without a cache: answers as it is told, on a real socket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from bramley.common import rpc
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1 import cachestore_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class FakeStore(cachestore_pb2_grpc.CacheStoreServiceServicer):
    """The calls of router and command line; every other one is UNIMPLEMENTED.

    Attributes:
        flushed: roots that Flush was asked for.
        answers: of Flush by root.
        objects: ids that List tells; ``corrupt`` of them are damaged.
    """

    def __init__(self) -> None:
        self.flushed: list[bytes] = []
        self.answers: dict[bytes, pb.FlushResponse] = {}
        self.objects: list[str] = []
        self.corrupt: set[str] = set()
        self.stats = pb.StatsResponse()

    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushResponse:
        """Answer as told."""
        self.flushed.append(request.root)
        return self.answers.get(request.root, pb.FlushResponse(ok=True))

    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:
        """Answer as told."""
        return self.stats

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        """List a page of the objects, by id; never more than two."""
        after = sorted(one for one in self.objects if one > request.after_object_id)
        return pb.ListResponse(objects=[pb.StoredObject(object_id=one) for one in after[:2]])

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Find the damaged ones."""
        damaged = sorted(self.corrupt.intersection(request.object_ids))
        return pb.VerifyResponse(corrupt_object_ids=damaged, objects=len(request.object_ids))


@asynccontextmanager
async def store(folder: Path) -> AsyncGenerator[tuple[FakeStore, str]]:
    """Serve a FakeStore for the length of the block.

    Yields:
        It, and its gRPC target.
    """
    made = FakeStore()  # pyright: ignore[reportAbstractUsage]
    server = rpc.new_server()
    cachestore_pb2_grpc.add_CacheStoreServiceServicer_to_server(made, server)
    target = f"unix:{folder}/fake-store.sock"
    rpc.bind(server, target)
    await server.start()
    try:
        yield made, target
    finally:
        await server.stop(None)
