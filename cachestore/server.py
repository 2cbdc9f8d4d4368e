"""CacheStoreService: messages in, steps of the store, answers out. Nothing is decided here."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from time import monotonic, time
from typing import Any

import grpc

from bramley.cachestore import admin, wire
from bramley.cachestore.closed import Closed
from bramley.cachestore.events import Event
from bramley.cachestore.files import Files
from bramley.cachestore.leases import ReadLease, WriteLease
from bramley.cachestore.matching import Query
from bramley.cachestore.pack import absolute, pack
from bramley.cachestore.passing import Connection, DataSocket
from bramley.cachestore.recall import recall
from bramley.cachestore.segments import Segment
from bramley.cachestore.steps import steps, whole
from bramley.cachestore.store import Existing, Refused, Store
from bramley.cachestore.unpack import unpack
from bramley.cachestore.wishes import Seal
from bramley.common.errors import (
    BramleyError,
    InvalidRequest,
    NotLoaded,
    UnknownResource,
)
from bramley.common.status import to_status
from bramley.common.wire import to_duration, to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1 import cachestore_pb2_grpc

PROTOCOL_VERSION = 1
READ_BYTES = 1 << 20
LIST_MAX = 1000
PIN_S = 1800.0

Context = grpc.aio.ServicerContext[Any, Any]


class StoreServer(cachestore_pb2_grpc.CacheStoreServiceServicer):
    """The service.

    Args:
        store: the core.
        data: the data socket.
        hello: what every client is told of this store.
        flush: writes all that is pending; see process.py.
    """

    def __init__(
        self,
        store: Store,
        data: DataSocket,
        hello: pb.HelloResponse,
        flush: Callable[[bytes, float | None], Coroutine[Any, Any, pb.FlushResponse]],
    ) -> None:
        self._store = store
        self._data = data
        self._hello = hello
        self._flush = flush
        self._closed = Closed(store.tiers.catalogue)

    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloResponse:
        """Agree on a version and a transport."""
        # gRPC does not tell a server who is at the other end of a unix socket. The 0700 folder
        # of this socket guards it, and what touches bytes is asked by a connection's id, which
        # is only known here once the data socket has checked its peer's user.
        if request.protocol_version != PROTOCOL_VERSION:
            raise NotLoaded(
                f"protocol {request.protocol_version} is not spoken here",
                reason="PROTOCOL_MISMATCH",
                facts={"protocol_version": PROTOCOL_VERSION},
            )
        answer = pb.HelloResponse()
        answer.CopyFrom(self._hello)
        by_memory = pb.TRANSPORT_SHARED_MEMORY in request.transports
        answer.transport = pb.TRANSPORT_SHARED_MEMORY if by_memory else pb.TRANSPORT_INLINE
        return answer

    async def OpenNamespace(
        self, request: pb.OpenNamespaceRequest, context: Context
    ) -> pb.OpenNamespaceResponse:
        """Declare a namespace."""
        identity = wire.identity(request.identity)
        groups = wire.groups(request.groups)
        root = self._store.open_namespace(identity, groups, request.prefill_rate)
        tiers = self._store.tiers
        if tiers.disk is not None:
            with suppress(OSError):  # its name only helps to explain
                await tiers.on_disk_thread(tiers.disk.put_namespace, root, identity)
        return pb.OpenNamespaceResponse(root=root)

    async def Match(self, request: pb.MatchRequest, context: Context) -> pb.MatchResponse:
        """Find what can be used."""
        found = self._store.match(Query(request.root, request.block_hashes, request.token_ids_le))
        sizes = [wire.tier_bytes(boundary.uses) for boundary in found.boundaries]
        return wire.match_response(found, [self._store.restore_s(*size) for size in sizes])

    # Reading

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireResponse:
        """Lease objects."""
        self._connection(request.connection_id)
        entries = admin.known(self._store, request.object_ids)
        tiers = {entry.id: pb.TIER_SSD if entry.run is None else pb.TIER_RAM for entry in entries}
        acquiring = self._store.acquire(request.connection_id, request.root, request.object_ids)
        lease = await whole(acquiring, lambda lease: self._store.release(lease.id))
        found = admin.known(self._store, lease.objects)
        if len(found) != len(lease.objects) or request.connection_id not in self._data.connections:
            self._store.release(lease.id)
            raise UnknownResource("object", "one that was leased")
        reads = [wire.object_read(entry, tiers[entry.id]) for entry in found]
        return pb.AcquireResponse(lease_id=lease.id, objects=reads)

    async def Read(
        self, request: pb.ReadRequest, context: Context
    ) -> AsyncIterator[pb.ReadResponse]:
        """Send an object's bytes."""
        lease: ReadLease | None = self._store.leases.reads.get(request.lease_id)
        entries = admin.known(self._store, [request.object_id])
        if lease is None or request.object_id not in lease.objects or not entries:
            raise UnknownResource("lease", str(request.lease_id))
        run, size = entries[0].run, entries[0].object.payload_bytes
        assert run is not None, "a leased object left RAM"
        view = self._store.tiers.memory.view(run)
        for offset in range(0, size, READ_BYTES):
            data = bytes(view[offset : min(offset + READ_BYTES, size)])
            if request.lease_id not in self._store.leases.reads:
                raise UnknownResource("lease", str(request.lease_id))
            yield pb.ReadResponse(offset=offset, data=data)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        """End a read lease."""
        self._store.release(request.lease_id, request.corrupt_object_ids)
        return pb.ReleaseResponse()

    # Writing

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveResponse:
        """Hold room."""
        self._connection(request.connection_id)
        reserving = self._store.reserve(request.connection_id, wire.wish(request))
        try:
            lease = await whole(reserving, self._abort)
        except Refused as refusal:
            after_s = refusal.retry_after_s
            return pb.ReserveResponse(
                refusal=pb.ReserveResponse.Refusal.Value(f"REFUSAL_{refusal.reason}"),
                retry_after=None if after_s is None else to_duration(after_s),
            )
        if isinstance(lease, Existing):
            return pb.ReserveResponse(existing_object_id=lease.object_id)
        if request.connection_id not in self._data.connections:
            self._abort(lease)
            raise NotLoaded("the connection has ended", reason="NOT_CONNECTED")
        reservation = pb.Reservation(
            lease_id=lease.id, generation=lease.generation, ttl=self._hello.lease_ttl
        )
        return pb.ReserveResponse(reservation=reservation)

    def _abort(self, lease: WriteLease | Existing) -> None:
        if isinstance(lease, WriteLease):
            self._store.abort(lease.id, lease.generation)

    async def Write(
        self, request_iterator: AsyncIterator[pb.WriteRequest], context: Context
    ) -> pb.WriteResponse:
        """Take a payload in pieces."""
        written = 0
        try:
            async for request in request_iterator:
                self._write(request)
                written += len(request.data)
        except BramleyError as error:  # the boundary of common/rpc.py guards no such handler
            await context.abort_with_status(to_status(error))
        return pb.WriteResponse(bytes=written)

    def _write(self, request: pb.WriteRequest) -> None:
        lease = self._store.leases.find(request.lease_id, request.generation)
        if lease is None:
            raise NotLoaded("the write lease is over", reason="STALE_LEASE")
        end = request.offset + len(request.data)
        if end > lease.run.size:
            raise InvalidRequest("data", "is more than was reserved")
        self._store.tiers.memory.view(lease.run)[request.offset : end] = request.data

    async def Seal(self, request: pb.SealRequest, context: Context) -> pb.SealResponse:
        """Make a payload visible."""
        lease = self._store.leases.find(request.lease_id, request.generation)
        if lease is None:
            raise NotLoaded("the write lease is over", reason="STALE_LEASE")
        source = None
        if request.HasField("source"):
            connection = self._connection(lease.connection)
            source = self._source(connection, request.source, lease.run.size)
        seal = Seal(
            chains=request.block_hashes,
            token_ids_le=request.token_ids_le,
            checksums=request.checksums,
            header=request.header,
            session_key=request.session_key,
            source=source,
            prompt_boundary=request.prompt_boundary,
        )
        sealing = self._store.seal(request.lease_id, request.generation, seal)
        entry = await whole(sealing, lambda _: None)
        return pb.SealResponse(object_id=entry.id, promise=wire.promise(entry))

    def _source(self, connection: Connection, source: pb.Segment, size: int) -> tuple[Segment, int]:
        staging = connection.staging
        if staging is None or source.segment_id != connection.staging_id:
            raise InvalidRequest("source", "is not the caller's staging")
        if source.bytes != size or source.offset + size > staging.size:
            raise InvalidRequest("source", f"has no {size} bytes in staging")
        return staging, source.offset

    async def Abort(
        self, request: pb.CacheStoreServiceAbortRequest, context: Context
    ) -> pb.CacheStoreServiceAbortResponse:
        """Give up a write lease."""
        self._store.abort(request.lease_id, request.generation)
        return pb.CacheStoreServiceAbortResponse()

    async def Touch(self, request: pb.TouchRequest, context: Context) -> pb.TouchResponse:
        """Renew leases."""
        if not request.connection_id:
            raise InvalidRequest("connection_id", "is empty: the store's own leases have that one")
        leases = self._store.leases
        ended = leases.touch(request.connection_id, request.lease_ids, monotonic())
        return pb.TouchResponse(expired_lease_ids=ended)

    def _connection(self, connection_id: str) -> Connection:
        connection = self._data.connections.get(connection_id)
        if connection is None:
            raise NotLoaded("not connected to the data socket", reason="NOT_CONNECTED")
        return connection

    # All of it

    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushResponse:
        """Have all on disk."""
        return await self._flush(request.root, context.time_remaining())

    async def Watch(
        self, request: pb.CacheStoreServiceWatchRequest, context: Context
    ) -> AsyncIterator[pb.CacheStoreServiceWatchResponse]:
        """Tell what comes and goes."""
        events = self._store.tiers.events
        news = events.after(request.after_sequence) if request.after_sequence else None
        told = request.after_sequence
        if news is None:
            told = events.last
            yield self._event(told, reset=True)
            for entry in list(self._store.tiers.catalogue.entries.values()):
                tier = "ssd" if entry.run is None else "ram"
                yield self._change(Event(told, entry.object, tier))
        while True:
            news = events.after(told)
            if news is None:
                raise NotLoaded("too slow: start over", reason="WATCH_TOO_SLOW")
            for event in news:
                yield self._change(event)
                told = event.sequence
            if told == events.last:
                await events.more()

    def _event(self, sequence: int, *, reset: bool = False) -> pb.CacheStoreServiceWatchResponse:
        epoch = self._hello.epoch
        return pb.CacheStoreServiceWatchResponse(sequence=sequence, epoch=epoch, reset=reset)

    def _change(self, event: Event) -> pb.CacheStoreServiceWatchResponse:
        message = self._event(event.sequence)
        message.root = event.stored.root
        chains = b"".join(part.chain for part in event.stored.parts)
        if event.tier is None:
            message.removed_hashes = chains
        else:
            message.stored_hashes = chains
            message.tier = pb.TIER_RAM if event.tier == "ram" else pb.TIER_SSD
        return message

    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:
        """Tell counts."""
        return pb.StatsResponse(counters=dict(self._store.counts), gauges=self._store.gauges())

    # Sessions

    async def Recall(self, request: pb.RecallRequest, context: Context) -> pb.RecallResponse:
        """Tell what was said in one."""
        namespace = self._store.namespace(request.root)
        catalogue, key = self._store.tiers.catalogue, request.session_key
        after_s = self._closed.at_s(request.root, key)
        found = recall(catalogue, namespace, key, request.limit, after_s)
        return pb.RecallResponse(
            sequences=[
                pb.RecallResponse.Sequence(
                    token_ids_le=one.token_ids_le, first_token=one.first_token, header=one.header
                )
                for one in found
            ]
        )

    async def CloseSession(
        self, request: pb.CacheStoreServiceCloseSessionRequest, context: Context
    ) -> pb.CacheStoreServiceCloseSessionResponse:
        """Protect it no longer, and forget what was said in it."""
        was_open = self._store.tiers.sessions.close(request.root, request.session_key)
        was_stored = self._closed.close(request.root, request.session_key, time())
        found = was_open or was_stored
        return pb.CacheStoreServiceCloseSessionResponse(found=found)

    # Administration

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        """Describe objects, by id."""
        found = await admin.listed(
            self._store,
            root=request.root,
            session_key=request.session_key,
            after=request.after_object_id,
            begins=request.object_id_prefix,
            limit=min(request.limit or LIST_MAX, LIST_MAX),
        )
        ids, now_s = self._store.tiers.catalogue.ids, monotonic()
        answer = pb.ListResponse(objects=[wire.stored_object(entry, now_s) for entry in found])
        for one in answer.objects:
            one.unique_characters = admin.unique_characters(ids, one.object_id)
        return answer

    async def ListNamespaces(
        self, request: pb.ListNamespacesRequest, context: Context
    ) -> pb.ListNamespacesResponse:
        """Describe namespaces."""
        found = admin.namespaces(self._store)
        return pb.ListNamespacesResponse(
            namespaces=[
                wire.namespace(
                    one.root,
                    one.identity,
                    objects=one.objects,
                    size=one.size,
                    is_open=one.root in self._store.namespaces,
                )
                for one in found
            ]
        )

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Say why."""
        identity = wire.identity(request.identity)
        told = admin.explain(self._store, identity, request.block_hashes, request.token_ids_le)
        return pb.ExplainResponse(
            matched_tokens=told.matched_tokens,
            ssd_tokens=told.ssd_tokens,
            explanation=told.words,
            first_differing_block=told.first_differing_block,
            mismatched_fields=told.mismatched_fields,
            missing_groups=told.missing_groups,
        )

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        """Keep objects for a while."""
        seconds = to_seconds(request.ttl) if request.HasField("ttl") else PIN_S
        entries = admin.known(self._store, request.object_ids)
        done = admin.pin(self._store, entries, monotonic(), seconds)
        return pb.PinResponse(
            pinned=done.count, pinned_bytes=done.size, pinned_bytes_max=done.limit
        )

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:
        """Let objects go again."""
        entries = admin.known(self._store, request.object_ids)
        return pb.UnpinResponse(unpinned=admin.unpin(entries))

    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:
        """Remove objects, or all of a namespace."""
        of_namespace = self._store.tiers.catalogue.of_namespace
        ids = of_namespace(request.root) if request.root else request.object_ids
        done = await admin.evict(self._store, admin.known(self._store, ids), monotonic())
        return pb.EvictResponse(
            evicted=done.evicted,
            bytes=done.size,
            held=done.held,
            pinned=done.pinned,
            followed=done.followed,
        )

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Prove objects."""
        entries = admin.known(self._store, request.object_ids)
        done = await whole(admin.prove(self._store, entries), lambda _: None)
        return pb.VerifyResponse(corrupt_object_ids=done.damaged, objects=done.objects)

    async def Scrub(self, request: pb.ScrubRequest, context: Context) -> pb.ScrubResponse:
        """Prove everything, in pieces."""
        catalogue, files_only = self._store.tiers.catalogue, request.files_only
        entries = catalogue.in_order(request.after_object_id)
        proving = admin.prove(self._store, entries, limit=request.limit, files_only=files_only)
        done = await whole(proving, lambda _: None)
        return pb.ScrubResponse(
            objects=done.objects,
            bytes=done.size,
            corrupt=len(done.damaged),
            corrupt_object_ids=done.damaged,
            unreadable=len(done.unreadable),
            missing=len(done.missing),
            last_object_id=done.last,
            objects_total=len(catalogue.disk if files_only else catalogue.entries),
        )

    async def Export(
        self, request: pb.ExportRequest, context: Context
    ) -> AsyncIterator[pb.ExportResponse]:
        """Write prefixes to a file."""
        job = pack(self._store, request.object_ids, absolute(request.path), Files())
        async with aclosing(steps(job)) as told:
            async for at in told:
                yield pb.ExportResponse(
                    objects=at.objects,
                    bytes=at.size,
                    objects_total=at.objects_total,
                    bytes_total=at.size_total,
                    left_out=at.left_out,
                )

    async def Import(
        self, request: pb.ImportRequest, context: Context
    ) -> AsyncIterator[pb.ImportResponse]:
        """Take the prefixes of a file in."""
        job = unpack(self._store, absolute(request.path), Files())
        async with aclosing(steps(job)) as told:
            async for at in told:
                yield pb.ImportResponse(
                    bytes_proved=at.size_proved,
                    bytes_total=at.size_total,
                    objects=at.objects,
                    bytes=at.size,
                    skipped=at.skipped,
                    held=at.held,
                )
