"""Passes shared memory to workers by descriptor, and knows by this connection that they live.

A worker connects and says one line: who it is. It is given its own staging segment, which it
may write, then every segment of the RAM tier, read-only, now and as they come. It says nothing
more: the end of the connection, which the kernel brings about even on ``kill -9``, ends all
that it holds.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path

import msgspec

from bramley.cachestore.memory import Memory
from bramley.cachestore.segments import Segment, SegmentKind, create
from bramley.common.logs import facts

log = logging.getLogger(__name__)

RECORD = struct.Struct("<B7xQQ")  # what, segment's id, its bytes; a descriptor comes along
GREETING_MAX = 512
GREETING_S = 5.0
ACCEPT_AGAIN_S = 0.2
_BACKLOG = 64

# sys/socket.h of Linux, sys/un.h and sys/ucred.h of macOS; neither platform names the other's.
_SO_PEERCRED = 17
_UCRED = struct.Struct("3i")  # pid, uid, gid
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
_XUCRED, _XUCRED_BYTES, _XUCRED_VERSION = struct.Struct("=II"), 76, 0  # begins: version, uid


class NoDescriptors(OSError):
    """The store is there, but shared memory does not come through."""


class What(IntEnum):
    """What a record tells."""

    STAGING = 1
    ARENA = 2
    DROPPED = 3  # without a descriptor
    READY = 4  # without a descriptor: all there is now has been told


class Greeting(msgspec.Struct, frozen=True):
    """Who connects; with ``inline`` it wants no descriptors."""

    connection_id: str
    inline: bool = False


@dataclass
class Connection:
    """A worker's.

    Attributes:
        staging: the worker's own; None if it is inline.
        news: segments that it is yet to be told of.
    """

    id: str
    staging_id: int
    staging: Segment | None
    news: deque[int] = field(default_factory=deque)
    more: asyncio.Event = field(default_factory=asyncio.Event)


class DataSocket:
    """The store's end.

    Args:
        path: of the unix socket.
        memory: the RAM tier.
        staging_bytes: of each worker.
        closed: told of each connection's end.

    Attributes:
        connections: by id.
    """

    def __init__(
        self,
        path: Path,
        memory: Memory,
        staging_bytes: int,
        kind: SegmentKind,
        closed: Callable[[str], None],
    ) -> None:
        self.connections: dict[str, Connection] = {}
        self._path = path
        self._memory = memory
        self._staging_bytes = staging_bytes
        self._kind: SegmentKind = kind
        self._closed = closed
        memory.changed = self._segment_changed

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Accept connections for the length of the block.

        Yields:
            Once it does.

        Raises:
            OSError: the socket cannot be bound.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.setblocking(False)
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen(_BACKLOG)
            async with asyncio.TaskGroup() as tasks:
                accepting = tasks.create_task(self._accept(listener, tasks))
                try:
                    yield
                finally:
                    accepting.cancel()
                    self._path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        serving: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listener)
                except OSError as error:  # without descriptors, say; who is connected goes on
                    log.warning("cannot accept a worker", extra=facts(error=error))
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                task = tasks.create_task(self._serve(peer))
                serving.add(task)
                task.add_done_callback(serving.discard)
        finally:
            for task in serving:
                task.cancel()

    async def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):  # its end is no other worker's
            peer.setblocking(False)
            if (user := user_of(peer)) not in {None, os.geteuid()}:
                log.warning("another user's connection refused", extra=facts(user=user))
                return
            greeting = await _greeting(peer)
            if greeting is None or not greeting.connection_id:  # ours have the empty name
                return
            if greeting.connection_id in self.connections:
                return
            try:
                connection = await self._connection(greeting)
            except OSError as error:
                log.warning("no memory for a worker's staging", extra=facts(error=error))
                return
            try:
                await self._attend(connection, peer)
            finally:
                if connection.staging is not None:
                    connection.staging.close_descriptors()

    async def _connection(self, greeting: Greeting) -> Connection:
        staging: Segment | None = None
        if not greeting.inline:
            make = partial(create, self._staging_bytes, writable=True, kind=self._kind)
            staging = await asyncio.to_thread(make)
        return Connection(greeting.connection_id, self._memory.next_id(), staging)

    async def _attend(self, connection: Connection, peer: socket.socket) -> None:
        if connection.id in self.connections:
            return  # it came while the staging was made
        self.connections[connection.id] = connection
        telling = asyncio.create_task(self._tell(connection, peer))
        try:
            with contextlib.suppress(ConnectionError):
                while await asyncio.get_running_loop().sock_recv(peer, 64):
                    pass
        finally:
            telling.cancel()
            await asyncio.wait([telling])  # or its descriptors would be closed under it
            del self.connections[connection.id]
            self._closed(connection.id)

    def _segment_changed(self, segment_id: int) -> None:
        for connection in self.connections.values():
            connection.news.append(segment_id)
            connection.more.set()

    async def _tell(self, connection: Connection, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if connection.staging is not None:
                record = RECORD.pack(What.STAGING, connection.staging_id, self._staging_bytes)
                await _send(peer, record, connection.staging.peer_fd)
                connection.news.extend(self._memory.segments)
            await self._tell_news(connection, peer)
            await _send(peer, RECORD.pack(What.READY, 0, 0), None)
            while True:
                await connection.more.wait()
                connection.more.clear()
                await self._tell_news(connection, peer)

    async def _tell_news(self, connection: Connection, peer: socket.socket) -> None:
        while connection.news:
            segment_id = connection.news.popleft()
            segment = self._memory.segments.get(segment_id)
            if connection.staging is None:
                continue
            if segment is None:
                await _send(peer, RECORD.pack(What.DROPPED, segment_id, 0), None)
            else:
                record = RECORD.pack(What.ARENA, segment_id, segment.size)
                await _send(peer, record, segment.peer_fd)


def user_of(peer: socket.socket, platform: str = sys.platform) -> int | None:
    """Ask the kernel as whom the process at the other end ran when it connected.

    Returns:
        Its user id; None where the platform does not tell, and the socket's mode alone guards it.

    Raises:
        OSError: the connection tells nothing, as one that has ended may.
    """
    if platform == "linux":
        told = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _UCRED.size)
        return _UCRED.unpack(told)[1]
    if platform == "darwin":
        told = peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        version, user = _XUCRED.unpack_from(told)
        if version != _XUCRED_VERSION:
            raise OSError(errno.EPROTO, f"credentials of version {version} are not known")
        return user
    return None


async def _greeting(peer: socket.socket) -> Greeting | None:
    loop = asyncio.get_running_loop()
    line = b""
    with contextlib.suppress(TimeoutError, ConnectionError, msgspec.DecodeError):
        async with asyncio.timeout(GREETING_S):
            while not line.endswith(b"\n"):
                more = await loop.sock_recv(peer, GREETING_MAX - len(line))
                if not more:
                    return None
                line += more
        return msgspec.json.decode(line, type=Greeting)
    return None


async def _send(peer: socket.socket, record: bytes, fd: int | None) -> None:
    own = [] if fd is None else [os.dup(fd)]  # the segment may be dropped while we wait
    try:
        while True:
            try:
                socket.send_fds(peer, [record], own)
            except BlockingIOError:
                await _until(peer, "writer")
            else:
                return
    finally:
        for each in own:
            os.close(each)


async def _until(peer: socket.socket, which: str) -> None:
    loop = asyncio.get_running_loop()
    able = loop.create_future()
    add = loop.add_writer if which == "writer" else loop.add_reader
    remove = loop.remove_writer if which == "writer" else loop.remove_reader
    add(peer.fileno(), lambda: able.done() or able.set_result(None))
    try:
        await able
    finally:
        remove(peer.fileno())


# The worker's end


@dataclass(frozen=True)
class Told:
    """A record and its descriptor, which is the receiver's to close."""

    what: What
    segment_id: int
    size: int
    fd: int | None


async def connect(path: str, greeting: Greeting) -> socket.socket:
    """Connect to a store's data socket, and greet it.

    Returns:
        The connection.

    Raises:
        OSError: there is no store.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, path)
        await loop.sock_sendall(peer, msgspec.json.encode(greeting) + b"\n")
    except BaseException:
        peer.close()
        raise
    return peer


async def receive(peer: socket.socket) -> Told:
    """Wait for the next record.

    Returns:
        The record.

    Raises:
        ConnectionError: the connection has ended.
        NoDescriptors: a descriptor did not come along.
    """
    cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(peer, RECORD.size, 1, cloexec)
        except BlockingIOError:
            await _until(peer, "reader")
            continue
        break
    if len(data) != RECORD.size:
        raise ConnectionError("the store has gone")
    number, segment_id, size = RECORD.unpack(data)
    what = What(number)
    if what in {What.STAGING, What.ARENA} and not fds:
        raise NoDescriptors("descriptors do not come through")
    return Told(what, segment_id, size, fds[0] if fds else None)
