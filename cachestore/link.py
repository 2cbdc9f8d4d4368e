"""A worker's bond with one incarnation of the store: gRPC, the data socket and the maps."""

import asyncio
import contextlib
import mmap
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from bramley.cachestore.passing import Greeting, NoDescriptors, What, connect, receive
from bramley.cachestore.segments import attach
from bramley.cachestore.staging import Staging
from bramley.common.rpc import open_channel
from bramley.common.wire import to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub

if TYPE_CHECKING:
    from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceAsyncStub

PROTOCOL_VERSION = 1
CONNECT_S = 5.0
CLOSE_S = 1.0


@dataclass(eq=False)
class Link:
    """One bond.

    Attributes:
        id: of the connection, whose end ends all that this worker holds.
        epoch: of the store.
        ttl_s: how long a lease lives without being renewed.
        staging: this worker's own.
        segments: maps of the store's RAM, by id; None in place of them where all is inline.
        is_alive: whether the store still is there, as far as is known.
    """

    id: str
    channel: grpc.aio.Channel
    stub: "CacheStoreServiceAsyncStub"
    epoch: int
    ttl_s: float
    peer: socket.socket
    staging: Staging
    segments: dict[int, memoryview] | None
    is_alive: bool = True
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def segment(self, segment_id: int) -> memoryview:
        """Wait until a segment is mapped."""
        assert self.segments is not None
        while segment_id not in self.segments:
            await self._changed.wait()
        return self.segments[segment_id]

    async def follow(self) -> None:
        """Map segments as they come, until the store goes.

        Raises:
            OSError: it went.
        """
        while True:
            told = await receive(self.peer)
            if self.segments is None:
                continue
            if told.what is What.ARENA and told.fd is not None:
                view = await asyncio.to_thread(attach, told.fd, told.size, writable=False)
                self.segments[told.segment_id] = view
            elif told.what is What.DROPPED:
                self.segments.pop(told.segment_id, None)
            self._changed.set()
            self._changed = asyncio.Event()

    async def close(self) -> None:
        """End it; maps last as long as views of them do."""
        self.is_alive = False
        self.peer.close()
        await self.channel.close(CLOSE_S)


async def establish(target: str, name: str, *, inline: bool) -> Link:
    """Connect to a store.

    Args:
        target: gRPC target of the store.
        name: of this worker, for the store's logs.
        inline: whether bytes go in messages.

    Returns:
        The link, with all segments of now mapped.

    Raises:
        OSError: there is no store.
        NoDescriptors: only ``inline`` can work.
        grpc.aio.AioRpcError: it refuses.
    """
    connection_id = secrets.token_hex(8)
    transport = pb.TRANSPORT_INLINE if inline else pb.TRANSPORT_SHARED_MEMORY
    async with contextlib.AsyncExitStack() as undo:
        channel = open_channel(target)
        undo.push_async_callback(channel.close)
        stub = CacheStoreServiceStub(channel)
        hello = await stub.Hello(
            pb.HelloRequest(
                protocol_version=PROTOCOL_VERSION,
                client=name,
                connection_id=connection_id,
                transports=[transport],
            ),
            timeout=CONNECT_S,
        )
        peer = await connect(hello.data_socket, Greeting(connection_id, inline))
        undo.callback(peer.close)
        staging, segments = await _segments(peer)
        if staging is None:
            private = memoryview(mmap.mmap(-1, hello.staging_bytes))
            staging, segments = Staging(private, 0), None
        undo.pop_all()
    ttl_s = to_seconds(hello.lease_ttl)
    return Link(connection_id, channel, stub, hello.epoch, ttl_s, peer, staging, segments)


async def _segments(peer: socket.socket) -> tuple[Staging | None, dict[int, memoryview]]:
    staging: Staging | None = None
    segments: dict[int, memoryview] = {}
    while True:
        async with asyncio.timeout(CONNECT_S):  # for each: mapping a large tier takes long
            told = await receive(peer)
        if told.what is What.READY:
            return staging, segments
        if told.fd is None:
            continue
        own = told.what is What.STAGING
        try:
            view = await asyncio.to_thread(attach, told.fd, told.size, writable=own)
        except OSError as error:
            raise NoDescriptors(error.errno, f"cannot map: {error.strerror}") from error
        if own:
            staging = Staging(view, told.segment_id)
        else:
            segments[told.segment_id] = view
