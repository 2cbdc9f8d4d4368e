"""A cache store without a cache: answers as it is told, on a real socket, in threads."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from typing_extensions import override

from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1 import cachestore_pb2_grpc

Context = grpc.ServicerContext


class FakeStore(cachestore_pb2_grpc.CacheStoreServiceServicer):
    """The calls of router and command line; every other one is UNIMPLEMENTED.

    Attributes:
        flushed: roots that Flush was asked for.
        answers: of Flush by root.
        objects: ids that List tells.
        corrupt: ids that Verify finds damaged.
        verified: ids that Verify was asked for.
        stats: what Stats tells.
    """

    def __init__(self) -> None:
        self.flushed: list[bytes] = []
        self.answers: dict[bytes, pb.FlushResponse] = {}
        self.objects: list[str] = []
        self.corrupt: set[str] = set()
        self.verified: list[str] = []
        self.stats = pb.StatsResponse()

    @override
    def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushResponse:
        self.flushed.append(request.root)
        return self.answers.get(request.root, pb.FlushResponse(ok=True))

    @override
    def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:
        return self.stats

    @override
    def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        after = sorted(one for one in self.objects if one > request.after_object_id)
        page = after[:3]  # never more, so that a caller has to ask again
        return pb.ListResponse(objects=[pb.StoredObject(object_id=one) for one in page])

    @override
    def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        self.verified += request.object_ids
        damaged = sorted(self.corrupt.intersection(request.object_ids))
        return pb.VerifyResponse(corrupt_object_ids=damaged, objects=len(request.object_ids))


@contextmanager
def storing() -> Generator[tuple[FakeStore, str]]:
    """Serve a FakeStore for the length of the block.

    Yields:
        It, and its gRPC target.
    """
    made = FakeStore()  # pyright: ignore[reportAbstractUsage]
    server = grpc.server(ThreadPoolExecutor(2))
    cachestore_pb2_grpc.add_CacheStoreServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield made, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
