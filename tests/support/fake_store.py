"""A cache store without a cache: answers as it is told, on a real socket, in threads."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from typing_extensions import override

from bramley.common.rpc import SERVER_OPTIONS
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1 import cachestore_pb2_grpc

Context = grpc.ServicerContext


class FakeStore(cachestore_pb2_grpc.CacheStoreServiceServicer):
    """Some calls of router and command line; every other one is UNIMPLEMENTED.

    Attributes:
        flushed: roots that Flush was asked for.
        answers: of Flush by root.
        objects: ids of what is there to be proved.
        files: those of them that have a file.
        corrupt: ids that Scrub finds damaged.
        unreadable: ids that Scrub cannot read.
        ends_with: what gRPC itself says of Scrub, as of a store that dies.
        verified: ids that Scrub has proved.
        stats: what Stats tells.
    """

    def __init__(self) -> None:
        self.flushed: list[bytes] = []
        self.answers: dict[bytes, pb.FlushResponse] = {}
        self.objects: list[str] = []
        self.files: list[str] = []
        self.corrupt: set[str] = set()
        self.unreadable: set[str] = set()
        self.ends_with: tuple[grpc.StatusCode, str] | None = None
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
    def Scrub(self, request: pb.ScrubRequest, context: Context) -> pb.ScrubResponse:
        if self.ends_with is not None:
            context.abort(*self.ends_with)
        everything = self.files if request.files_only else self.objects
        after = sorted(one for one in everything if one > request.after_object_id)
        piece = after[: min(request.limit, 3)]  # never more, so that a caller has to ask again
        self.verified += piece
        damaged = sorted(self.corrupt.intersection(piece))
        return pb.ScrubResponse(
            objects=len(piece),
            corrupt=len(damaged),
            corrupt_object_ids=damaged,
            unreadable=len(self.unreadable.intersection(piece)),
            last_object_id=piece[-1] if len(piece) < len(after) else "",
            objects_total=len(everything),
        )


@contextmanager
def storing() -> Generator[tuple[FakeStore, str]]:
    """Serve a FakeStore for the length of the block.

    Yields:
        It, and its gRPC target.
    """
    made = FakeStore()  # pyright: ignore[reportAbstractUsage]
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
    cachestore_pb2_grpc.add_CacheStoreServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield made, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
