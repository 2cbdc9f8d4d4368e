"""What a worker uses of the store. The store's failure is a miss or a refusal, never an error.

Control calls are for the event loop; staging is filled, and leased parts are read and
released, on any thread. A store that goes is looked for in the background, and one that was late
is asked nothing more until it answers again; meanwhile every call is a miss at once.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from time import monotonic
from typing import Self

import grpc

from bramley.cachestore import keys, wire
from bramley.cachestore.exchange import Boundary, Match, Published, Refusal, Snapshot
from bramley.cachestore.following import FAILURES, Following, is_late
from bramley.cachestore.keys import Identity
from bramley.cachestore.lease import Lease, LeasedPart, parts_of
from bramley.cachestore.link import Link
from bramley.cachestore.matching import Group
from bramley.cachestore.publishing import SLOWEST_RATE, publish
from bramley.cachestore.staging import Staged
from bramley.cachestore.steps import whole
from bramley.common.status import RemoteError
from bramley.common.wire import to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb

WAIT_S = 0.25
# Of the first lookup of a store, which may still be coming to itself; a miss then would cost a
# whole prompt of each conversation.
FIRST_WAIT_S = 1.0

_LOST = Refusal("STORE_LOST")
_REJECTED = Refusal("REJECTED")
_PARENT_MISSING = Refusal("PARENT_MISSING")


class StoreClient(Following):
    """One worker's client. Make it with ``connect``.

    Attributes:
        lookups: calls of ``match`` by result: hit, miss, late, failed, or away.
    """

    def __init__(self, target: str, name: str, *, inline: bool, wait_s: float) -> None:
        super().__init__(target, name, inline=inline, wait_s=wait_s)
        self.lookups: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._proven: Link | None = None
        self._staging_bytes = 0

    @classmethod
    def connect(
        cls, target: str, name: str, *, inline: bool = False, wait_s: float = WAIT_S
    ) -> Self:
        """Begin to connect in the background, and to reconnect whenever the store goes.

        Args:
            target: gRPC target of the store, a name that stays when the store is restarted.
            name: of this worker.
            inline: whether bytes go in messages even where descriptors could be passed.
            wait_s: longest wait of a call.

        Returns:
            The client, usable at once; until it is linked everything is a miss.
        """
        return cls(target, name, inline=inline, wait_s=wait_s)

    # Control calls

    async def open_namespace(
        self, identity: Identity, groups: Iterable[Group], prefill_rate: float = 0.0
    ) -> bytes:
        """Declare a namespace, to this store and those that come after it; returns its root."""
        root = keys.root(identity)
        request = pb.OpenNamespaceRequest(
            identity=wire.identity_message(identity),
            groups=[
                pb.StateGroup(name=one.name, required=one.required, sliceable=one.sliceable)
                for one in groups
            ],
            prefill_rate=prefill_rate,
        )
        self._namespaces[root] = request
        link = self._answering
        if link is not None:
            with self._tolerated(link):
                await link.stub.OpenNamespace(request, timeout=self._wait_s)
        return root

    @property
    def namespaces(self) -> set[bytes]:
        """Roots of those that a store is told of when it is found."""
        return set(self._namespaces)

    def forget_namespace(self, root: bytes) -> None:
        """Declare a namespace to no store any more."""
        self._namespaces.pop(root, None)

    async def recall(
        self, root: bytes, session_key: str, limit: int
    ) -> Sequence[pb.RecallResponse.Sequence] | None:
        """Ask what was said in a session; None where no store said."""
        link = self._answering
        if link is not None:
            request = pb.RecallRequest(root=root, session_key=session_key, limit=limit)
            with self._tolerated(link):
                return (await link.stub.Recall(request, timeout=self._wait_s)).sequences
        return None

    async def close_session(self, root: bytes, session_key: str) -> bool:
        """Have a session protected no longer; says whether the store knew it."""
        link = self._answering
        if link is not None:
            request = pb.CacheStoreServiceCloseSessionRequest(root=root, session_key=session_key)
            with self._tolerated(link):
                return (await link.stub.CloseSession(request, timeout=self._wait_s)).found
        return False

    async def match(
        self, root: bytes, chains: bytes, token_ids_le: bytes, timeout_s: float | None = None
    ) -> Match | None:
        """Find what the store has of a request.

        Args:
            root: of the namespace.
            chains: hashes of the request's whole blocks.
            token_ids_le: all its tokens.
            timeout_s: longest wait.

        Returns:
            None for a miss, whatever its cause.
        """
        link = self._answering
        if link is None:
            self.lookups["away"] += 1
            return None
        if timeout_s is None:
            is_first = link is not self._proven
            timeout_s = max(self._wait_s, FIRST_WAIT_S) if is_first else self._wait_s
        request = pb.MatchRequest(root=root, block_hashes=chains, token_ids_le=token_ids_le)
        with self._tolerated(link), self._counted():
            answer = await link.stub.Match(request, timeout=timeout_s)
            self._proven = link
            self.lookups["hit" if answer.boundaries else "miss"] += 1
            boundaries = tuple(
                Boundary(
                    tokens=one.tokens,
                    ram_bytes=one.ram_bytes,
                    ssd_bytes=one.ssd_bytes,
                    restore_s=to_seconds(one.restore_estimate),
                    object_ids=tuple(one.object_ids),
                )
                for one in answer.boundaries
            )
            missing = tuple(answer.missing_groups)
            if boundaries:
                return Match(root=root, boundaries=boundaries, missing_groups=missing)
        return None

    async def acquire(
        self, match: Match, boundary: Boundary | None = None, timeout_s: float | None = None
    ) -> Lease | None:
        """Lease what leads to a boundary, the deepest if none is named.

        Args:
            match: as found before.
            boundary: one of its.
            timeout_s: longest wait; by default what a slow disk would need.

        Returns:
            None for a miss: it has gone, the store has, or time was over.
        """
        link, at = self._answering, boundary or match.boundaries[0]
        if link is None:
            return None
        if timeout_s is None:
            timeout_s = self._wait_s + (at.ram_bytes + at.ssd_bytes) / SLOWEST_RATE
        request = pb.AcquireRequest(
            root=match.root, object_ids=at.object_ids, connection_id=link.id
        )
        with self._tolerated(link):
            async with asyncio.timeout(timeout_s):
                leasing = self._leased(link, request, link.ttl_s)
                # It may be granted already when its reader goes away.
                lease, answer = await whole(leasing, lambda leased: leased[0].release())
                try:
                    lease.parts = await self._parts(link, answer, at.tokens)
                except BaseException:
                    lease.release()
                    raise
                return lease
        return None

    async def _leased(
        self, link: Link, request: pb.AcquireRequest, timeout_s: float
    ) -> tuple[Lease, pb.AcquireResponse]:
        asked_s = monotonic()
        answer = await link.stub.Acquire(request, timeout=timeout_s)
        lease = self._leases[answer.lease_id] = Lease(
            answer.lease_id, link, asked_s, self._end_of_lease
        )
        return lease, answer

    async def _parts(
        self, link: Link, answer: pb.AcquireResponse, tokens: int
    ) -> Sequence[LeasedPart]:
        views: list[memoryview] = []
        for read in answer.objects:
            if link.segments is None:
                views.append(await _read(link, answer.lease_id, read))
            else:
                segment = await link.segment(read.segment.segment_id)
                start = read.segment.offset
                views.append(segment[start : start + read.segment.bytes])
        return parts_of(answer.objects, views, tokens)

    async def publish(self, staged: Staged, snapshot: Snapshot) -> Published | Refusal:
        """Hand a filled piece of staging over; it is released whatever comes of it.

        Args:
            staged: with the payload.
            snapshot: what it is.

        Returns:
            Where it is, or why it is not.
        """
        link = self._answering
        try:
            if link is not None and staged.staging is link.staging:
                with self._tolerated(link):
                    return await self._publish(link, staged, snapshot)
            return _LOST
        finally:
            staged.release()

    async def _publish(self, link: Link, staged: Staged, snapshot: Snapshot) -> Published | Refusal:
        def give_up(lease: pb.Reservation) -> None:
            if link.is_alive:
                self._spawn(self._abort(link, lease))

        try:
            return await publish(link, staged, snapshot, give_up)
        except grpc.aio.AioRpcError as error:
            told = RemoteError(error)
            if told.reason == "PARENT_MISSING":
                return _PARENT_MISSING
            if told.status_code is grpc.StatusCode.INVALID_ARGUMENT and told.field != "checksums":
                return _REJECTED
            if told.reason != "NAMESPACE_NOT_OPEN":
                raise
            opening = self._namespaces.get(snapshot.root)
            if opening is None:
                return _REJECTED
            await link.stub.OpenNamespace(opening, timeout=self._wait_s)
            return _LOST

    async def _abort(self, link: Link, lease: pb.Reservation) -> None:
        request = pb.CacheStoreServiceAbortRequest(
            lease_id=lease.lease_id, generation=lease.generation
        )
        with self._tolerated(link):
            await link.stub.Abort(request, timeout=link.ttl_s)

    async def stats(self) -> pb.StatsResponse | None:
        """Ask for the store's counts."""
        link = self._answering
        if link is not None:
            with self._tolerated(link):
                return await link.stub.Stats(pb.StatsRequest(), timeout=self._wait_s)
        return None

    async def flush(self, root: bytes = b"", timeout_s: float = 120.0) -> pb.FlushResponse | None:
        """Have all that was published written; None if the store did not say."""
        link = self._answering
        if link is not None:
            with self._tolerated(link):
                return await link.stub.Flush(pb.FlushRequest(root=root), timeout=timeout_s)
        return None

    # For any thread

    @property
    def staging_bytes(self) -> int:
        """How much can be staged at a time, by the store that was there last; 0 before one was."""
        link = self.link
        if link is not None:
            self._staging_bytes = len(link.staging.view)
        return self._staging_bytes

    def stage(self, nbytes: int) -> Staged | None:
        """Take a piece of staging to fill; None if there is no room now, or no store."""
        link = self._answering
        return link.staging.take(nbytes) if link is not None and nbytes > 0 else None

    def _end_of_lease(self, lease: Lease, corrupt: Sequence[str]) -> None:
        """Tell the store that a lease is over; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._spawn_release, lease, corrupt)

    def _spawn_release(self, lease: Lease, corrupt: Sequence[str]) -> None:
        if self._leases.get(lease.id) is lease:  # another store's may have the same id
            del self._leases[lease.id]
        if lease.link.is_alive:
            self._spawn(self._release(lease, corrupt))

    async def _release(self, lease: Lease, corrupt: Sequence[str]) -> None:
        request = pb.ReleaseRequest(lease_id=lease.id, corrupt_object_ids=corrupt)
        with self._tolerated(lease.link):
            await lease.link.stub.Release(request, timeout=lease.link.ttl_s)

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """Count a lookup that fails."""
        try:
            yield
        except FAILURES as error:
            self.lookups["late" if is_late(error) else "failed"] += 1
            raise


async def _read(link: Link, lease_id: int, read: pb.ObjectRead) -> memoryview:
    target = memoryview(bytearray(read.segment.bytes))
    call = link.stub.Read(pb.ReadRequest(lease_id=lease_id, object_id=read.object_id))
    try:
        async for piece in call:
            target[piece.offset : piece.offset + len(piece.data)] = piece.data
    finally:
        call.cancel()
    return target.toreadonly()
