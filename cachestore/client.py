"""What a worker uses of the store. The store's failure is a miss or a refusal, never an error.

Control calls are for the event loop; staging is filled, and leased parts are read and
released, on any thread. A store that goes is looked for in the background, and one that was late
is asked nothing more until it answers again; meanwhile every call is a miss at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Sequence
from time import monotonic
from typing import Self

import grpc

from bramley.cachestore import keys, wire
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.exchange import Boundary, Match, Published, Refusal, Snapshot
from bramley.cachestore.keys import Identity
from bramley.cachestore.lease import Lease, LeasedPart, parts_of
from bramley.cachestore.link import Link, establish
from bramley.cachestore.matching import Group
from bramley.cachestore.objects import padded
from bramley.cachestore.passing import NoDescriptors
from bramley.cachestore.staging import Staged
from bramley.common.logs import facts
from bramley.common.wire import short_name, to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb

log = logging.getLogger(__name__)

WAIT_S = 0.25
PUBLISH_WAIT_S = 5.0  # nobody waits for it
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 0.5
PROBE_S = 2.0  # longest wait of a late store, before it is asked once more
RENEWALS = 6  # of each lease within its time
WRITE_BYTES = 1 << 20
SLOWEST_RATE = 200e6  # bytes a second: what a Seal or an Acquire is given beside its wait


_LOST = Refusal("STORE_LOST")
# Of a call to a store; UsageError: its channel has been closed meanwhile.
_FAILURES = (grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, OSError)


class StoreClient:
    """One worker's client. Make it with ``connect``.

    Attributes:
        link: to the store; None while there is none.
    """

    def __init__(self, target: str, name: str, *, inline: bool, wait_s: float) -> None:
        self.link: Link | None = None
        self._target = target
        self._name = name
        self._inline = inline
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._namespaces: dict[bytes, pb.OpenNamespaceRequest] = {}
        self._leases: dict[int, Lease] = {}
        self._linked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: Link | None = None
        self._following = asyncio.create_task(self._follow())

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

    async def linked(self) -> None:
        """Wait until there is a store."""
        await self._linked.wait()

    async def close(self) -> None:
        """End the link; the store frees all that this worker holds."""
        self._following.cancel()
        await asyncio.wait([self._following])
        for task in self._tasks:
            task.cancel()

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
            return None
        request = pb.MatchRequest(root=root, block_hashes=chains, token_ids_le=token_ids_le)
        with self._tolerated(link):
            answer = await link.stub.Match(request, timeout=timeout_s or self._wait_s)
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
                asked_s = monotonic()
                answer = await link.stub.Acquire(request, timeout=timeout_s)
                lease = Lease(answer.lease_id, link, asked_s, self._end_of_lease)
                self._leases[lease.id] = lease
                try:
                    lease.parts = await self._parts(link, answer, at.tokens)
                except BaseException:
                    lease.release()
                    raise
                return lease
        return None

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
        sizes, chains = snapshot.sizes, snapshot.chains
        size = sum(padded(one) for one in sizes)
        seal_s = PUBLISH_WAIT_S + size / SLOWEST_RATE
        reserved = await link.stub.Reserve(
            pb.ReserveRequest(
                root=snapshot.root,
                connection_id=link.id,
                kind=wire.KINDS[snapshot.kind],
                group=snapshot.group,
                parent=snapshot.parent,
                chain=chains[-keys.HASH_BYTES :],
                first_token=snapshot.first_token,
                tokens=snapshot.tokens,
                bytes=sum(sizes),
            ),
            timeout=seal_s,
        )
        if reserved.WhichOneof("answer") == "existing_object_id":
            return Published(reserved.existing_object_id, existed=True)
        if reserved.WhichOneof("answer") == "refusal":
            has_hint = reserved.HasField("retry_after")
            after_s = to_seconds(reserved.retry_after) if has_hint else None
            return Refusal(short_name(pb.ReserveResponse.Refusal, reserved.refusal), after_s)
        lease = reserved.reservation
        try:
            return await self._fill(link, staged, snapshot, lease)
        except BaseException:
            if link.is_alive:
                self._spawn(self._abort(link, lease))
            raise

    async def _fill(
        self, link: Link, staged: Staged, snapshot: Snapshot, lease: pb.Reservation
    ) -> Published:
        sizes = snapshot.sizes
        size = sum(padded(one) for one in sizes)
        seal_s = PUBLISH_WAIT_S + size / SLOWEST_RATE
        payload = staged.view[:size]
        checksums = await asyncio.to_thread(checksums_of, payload, sizes)
        request = pb.SealRequest(
            lease_id=lease.lease_id,
            generation=lease.generation,
            block_hashes=snapshot.chains,
            token_ids_le=snapshot.token_ids_le,
            checksums=b"".join(checksums),
            header=snapshot.header,
            session_key=snapshot.session_key,
            prompt_boundary=snapshot.prompt_boundary,
        )
        if link.segments is None:
            await link.stub.Write(_pieces(lease, payload), timeout=seal_s)
        else:
            request.source.segment_id = staged.staging.segment_id
            request.source.offset, request.source.bytes = staged.offset, size
        answer = await link.stub.Seal(request, timeout=seal_s)
        return Published(answer.object_id, is_spilled=answer.promise >= pb.PROMISE_SPILLED)

    async def _abort(self, link: Link, lease: pb.Reservation) -> None:
        request = pb.CacheStoreServiceAbortRequest(
            lease_id=lease.lease_id, generation=lease.generation
        )
        with self._tolerated(link):
            await link.stub.Abort(request, timeout=self._wait_s)

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
        """How much can be staged at a time; 0 while there is no store."""
        link = self.link
        return len(link.staging.view) if link is not None else 0

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
            await lease.link.stub.Release(request, timeout=self._wait_s)

    def _spawn(self, step: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # A store that fails

    @property
    def _answering(self) -> Link | None:
        """The link, unless its store was late and has not answered since."""
        link = self.link
        return None if link is self._late else link

    @contextlib.contextmanager
    def _tolerated(self, link: Link) -> Generator[None]:
        """The store's failure is a miss; after a late answer it is not asked for a while."""
        try:
            yield
        except asyncio.CancelledError:
            # gRPC says so too when the channel is closed under a call; that is not our caller.
            task = asyncio.current_task()
            if link.is_alive or task is None or task.cancelling():
                raise
        except _FAILURES as error:
            log.debug("a call to the store failed", extra=facts(error=error))
            if _is_late(error) and link is self.link and self._late is None:
                self._late = link
                self._spawn(self._probe(link))

    async def _probe(self, link: Link) -> None:
        """Wait until a late store answers, or goes."""
        request = pb.TouchRequest(connection_id=link.id)
        try:
            while link.is_alive:
                try:
                    await link.stub.Touch(request, timeout=PROBE_S)
                except _FAILURES:
                    await asyncio.sleep(BACKOFF_MIN_S)
                else:
                    return
        finally:
            self._late = None

    # The link

    async def _follow(self) -> None:
        wait_s = BACKOFF_MIN_S
        while True:
            try:
                link = await self._establish()
            except _FAILURES as error:
                log.debug("no store", extra=facts(error=error, wait_s=wait_s))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, BACKOFF_MAX_S)
                continue
            wait_s = BACKOFF_MIN_S
            log.info("store found", extra=facts(epoch=link.epoch, connection=link.id))
            try:
                await self._keep(link)
            finally:
                self.link = None
                self._linked.clear()
                self._leases.clear()
                await link.close()
            log.warning("store lost", extra=facts(epoch=link.epoch))

    async def _establish(self) -> Link:
        try:
            link = await establish(self._target, self._name, inline=self._inline)
        except NoDescriptors as error:
            log.warning("no shared memory: bytes go in messages", extra=facts(error=error))
            link = await establish(self._target, self._name, inline=True)
        try:
            for request in self._namespaces.values():
                await link.stub.OpenNamespace(request, timeout=self._wait_s)
        except BaseException:
            await link.close()
            raise
        return link

    async def _keep(self, link: Link) -> None:
        self.link = link
        self._linked.set()
        renewing = asyncio.create_task(self._renew(link))
        try:
            with contextlib.suppress(OSError):
                await link.follow()
        finally:
            renewing.cancel()

    async def _renew(self, link: Link) -> None:
        while True:
            await asyncio.sleep(link.ttl_s / RENEWALS)
            leases = dict(self._leases)
            if not leases:
                continue
            asked_s = monotonic()
            request = pb.TouchRequest(lease_ids=list(leases), connection_id=link.id)
            with self._tolerated(link):
                answer = await link.stub.Touch(request, timeout=self._wait_s)
                for lease_id in set(leases) - set(answer.expired_lease_ids):
                    leases[lease_id].renewed(asked_s)


def _is_late(error: BaseException) -> bool:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return isinstance(error, TimeoutError)


async def _read(link: Link, lease_id: int, read: pb.ObjectRead) -> memoryview:
    target = memoryview(bytearray(read.segment.bytes))
    call = link.stub.Read(pb.ReadRequest(lease_id=lease_id, object_id=read.object_id))
    try:
        async for piece in call:
            target[piece.offset : piece.offset + len(piece.data)] = piece.data
    finally:
        call.cancel()
    return target.toreadonly()


async def _pieces(lease: pb.Reservation, payload: memoryview) -> AsyncIterator[pb.WriteRequest]:
    for offset in range(0, len(payload), WRITE_BYTES):
        yield pb.WriteRequest(
            lease_id=lease.lease_id,
            generation=lease.generation,
            offset=offset,
            data=bytes(payload[offset : offset + WRITE_BYTES]),
        )
