"""The store: matching, leases, sealing. Every call is one step on the event loop.

A sealed object is visible only after its bytes lie where no worker can write and their
checksums were taken there. Whoever is refused hears why, and every sealed object has a fate.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from bramley.cachestore import keys, matching, wishes
from bramley.cachestore.catalogue import TOKEN_BYTES, Entry
from bramley.cachestore.copying import checksums_of, clear_padding, copy
from bramley.cachestore.gauges import gauges
from bramley.cachestore.keys import HASH_BYTES, Identity
from bramley.cachestore.leases import ReadLease, Wish, WriteLease
from bramley.cachestore.matching import Found, Group, Query
from bramley.cachestore.namespaces import PREFILL_RATE, Namespace, superfluous
from bramley.cachestore.objects import BLOCK, StoredObject, padded
from bramley.cachestore.points import Points
from bramley.cachestore.refusals import Refusals
from bramley.cachestore.segments import Segment
from bramley.cachestore.spill import Spiller
from bramley.cachestore.tiers import READ_WAIT_S, SMOOTHING, Tiers
from bramley.common.errors import BramleyError, InvalidRequest, NotLoaded, UnknownResource
from bramley.common.logs import facts

if TYPE_CHECKING:
    from bramley.cachestore.scrub import Scrubber

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0


class Refused(BramleyError):
    """No room is reserved; ``reason`` is one of ReserveResponse.Refusal without its prefix."""

    code = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Existing:
    """Somebody stored the same already."""

    object_id: str


@dataclass(frozen=True)
class Limits:
    """What a store takes.

    Attributes:
        queue_bytes: that may wait for the disk.
        oversize: bytes of the largest payload.
    """

    queue_bytes: int
    oversize: int


class Store:
    """The core.

    Args:
        tiers: where objects are.
        points: where tests have the store die.
        limits: of what it takes.

    Attributes:
        namespaces: by root.
        spiller: None without a disk.
        scrubber: None without one.
        sealing: Seal calls under way.
        is_draining: whether it takes nothing more.
        ram_rate: bytes a second of copying, as last measured.
        touched: objects used since that was last noted.
        refusals: that were not made good.
    """

    def __init__(
        self,
        tiers: Tiers,
        namespaces: dict[bytes, Namespace],
        spiller: Spiller | None,
        points: Points,
        limits: Limits,
    ) -> None:
        self.tiers = tiers
        self.leases = tiers.leases
        self.counts = tiers.counts
        self.namespaces = namespaces
        self.spiller = spiller
        self.scrubber: Scrubber | None = None
        self.sealing = 0
        self.is_draining = False
        self.ram_rate = 4e9
        self.touched: set[str] = set()
        self.refusals = Refusals()
        self._points = points
        self._limits = limits

    def open_namespace(
        self, identity: Identity, groups: Sequence[Group], prefill_rate: float
    ) -> bytes:
        """Say what a namespace's state consists of; returns its root."""
        if not any(group.required for group in groups):
            raise InvalidRequest("groups", "none is required")
        if len({group.name for group in groups}) != len(groups):
            raise InvalidRequest("groups", "two have one name")
        root = keys.root(identity)
        rate = prefill_rate or PREFILL_RATE
        now_s = monotonic()
        namespace = self.namespaces[root] = Namespace(root, identity, tuple(groups), rate, now_s)
        self.tiers.catalogue.require(root, namespace.trunk)
        self.tiers.order.set_rate(root, rate)
        for old in superfluous(self.namespaces, self._is_empty, now_s):
            del self.namespaces[old]
            self.tiers.catalogue.forget_namespace(old)
            self.tiers.order.forget_rate(old)
        return root

    def _is_empty(self, root: bytes) -> bool:
        return not self.tiers.catalogue.of_namespace(root)

    def namespace(self, root: bytes) -> Namespace:
        """Find an opened namespace.

        Returns:
            It.

        Raises:
            NotLoaded: nobody has opened it since the store started.
        """
        found = self.namespaces.get(root)
        if found is None:
            raise NotLoaded("the namespace is not open", reason="NAMESPACE_NOT_OPEN")
        found.used_s = monotonic()
        return found

    # Reading

    def match(self, query: Query) -> Found:
        """Find the longest prefixes of a request that can be used, and count it."""
        found = self.find(query)
        if not self.counts["matches"] and self.spiller is not None:
            self.spiller.wake()
        self.tiers.asked_s = monotonic()
        self.counts["matches"] += 1
        if found.boundaries:
            self.counts["match_hits"] += 1
            self.counts["matched_tokens"] += found.boundaries[0].tokens
        return found

    def find(self, query: Query) -> Found:
        """Find the longest prefixes of a request that can be used."""
        namespace = self.namespace(query.root)
        if len(query.tokens) % TOKEN_BYTES or len(query.chains) % HASH_BYTES:
            raise InvalidRequest("token_ids_le", "is not whole tokens, or its hashes not whole")
        if query.blocks > len(query.tokens) // TOKEN_BYTES // BLOCK:
            raise InvalidRequest("block_hashes", "are more than there are whole blocks")
        return matching.find(self.tiers.catalogue, namespace.groups, query)

    def restore_s(self, ram_bytes: int, ssd_bytes: int) -> float:
        """Estimate how long reading takes."""
        is_sick = ssd_bytes and self.tiers.reads.is_stuck
        waiting_s = READ_WAIT_S if is_sick else ssd_bytes / self.tiers.ssd_rate
        return (ram_bytes + ssd_bytes) / self.ram_rate + waiting_s

    async def acquire(self, connection: str, root: bytes, object_ids: Sequence[str]) -> ReadLease:
        """Lease objects, and bring them into RAM.

        Returns:
            The lease.

        Raises:
            UnknownResource: one is gone, or damaged.
            Overloaded: RAM has no room for them.
        """
        self.tiers.asked_s = monotonic()
        entries = [self._entry(root, object_id) for object_id in object_ids]
        lease = self.leases.read(connection, object_ids, monotonic())
        now_s = monotonic()
        try:
            for entry in reversed(entries):  # so that what others follow from is the last to go
                self.tiers.order.used(entry, now_s)
                self.tiers.sessions.used(entry, now_s)
                self.touched.add(entry.id)
            self.counts["acquired_ram"] += sum(entry.run is not None for entry in entries)
            self.counts["acquired_ssd"] += sum(entry.run is None for entry in entries)
            await asyncio.gather(*[self.tiers.bring_to_ram(entry) for entry in entries])
        except BaseException:
            self.release(lease.id)
            raise
        if lease.id not in self.leases.reads:
            raise UnknownResource("lease", str(lease.id))
        return lease

    def _entry(self, root: bytes, object_id: str) -> Entry:
        entry = self.tiers.catalogue.entries.get(object_id)
        if entry is None or entry.object.root != root:
            raise UnknownResource("object", object_id)
        return entry

    def release(self, lease_id: int, corrupt: Sequence[str] = ()) -> None:
        """End a read lease; its reader found the objects ``corrupt``."""
        lease = self.leases.release(lease_id)
        for object_id in corrupt:
            entry = self.tiers.catalogue.entries.get(object_id)
            if lease is not None and object_id in lease.objects and entry is not None:
                self.tiers.quarantine(entry)
        self.tiers.free_retired()

    # Writing

    async def reserve(self, connection: str, wish: Wish) -> WriteLease | Existing:
        """Hold room for an object.

        Returns:
            The lease, or the object that is there already.

        Raises:
            Refused: there is none, or the object cannot be stored.
            InvalidRequest: it is no object of the namespace.
            NotLoaded: the connection has ended, or nobody has opened the namespace.
        """
        self.tiers.asked_s = monotonic()
        namespace = self.namespace(wish.root)
        wishes.check(namespace, wish)
        existing = wishes.existing(self.tiers.catalogue, wish)
        if existing is not None:
            self.refusals.found(wish.group, wish.chain)
            return Existing(existing.id)
        if wishes.parent_end(self.tiers.catalogue, namespace, wish) != wish.first_token:
            raise self._refused(wish, "PARENT_MISSING", "what it follows is not here")
        size = sum(padded(one) for one in wishes.sizes(wish))
        if size > self._limits.oversize:
            raise self._refused(
                wish, "OVERSIZE", f"{size} bytes; {self._limits.oversize} are taken at most"
            )
        self._check_queue(wish, size)
        waiting = self.leases.read(connection, (), monotonic())  # it ends with the connection
        try:
            run = await self.tiers.memory.take(size)
        finally:
            is_connected = self.leases.release(waiting.id) is not None
        if run is None:
            raise self._full(wish)
        if not is_connected:
            self.tiers.memory.give(run)
            raise NotLoaded("the connection has ended", reason="NOT_CONNECTED")
        self.counts["reserved"] += 1
        return self.leases.write(connection, wish, run, monotonic())

    def _check_queue(self, wish: Wish, size: int) -> None:
        if self.is_draining:
            raise self._refused(wish, "BREAKER_OPEN", "the store is stopping")
        if self.spiller is None or self.spiller.breaker.has_tripped:
            return
        pending = self.tiers.pending_bytes
        if pending and pending + size > self._limits.queue_bytes:
            raise self._refused(wish, "QUEUE_FULL", "too much waits for the disk", RETRY_AFTER_S)

    def _full(self, wish: Wish) -> Refused:
        breaker = self.spiller.breaker if self.spiller is not None else None
        if breaker is None or not breaker.has_tripped:
            return self._refused(wish, "RAM_FULL", "RAM is full of what is needed", RETRY_AFTER_S)
        reason = "DISK_FULL" if breaker.is_full else "BREAKER_OPEN"
        after_s = max(RETRY_AFTER_S, breaker.remaining_s(monotonic()))
        return self._refused(wish, reason, "RAM is full, and the disk takes nothing", after_s)

    def _refused(
        self, wish: Wish, reason: str, message: str, retry_after_s: float | None = None
    ) -> Refused:
        self.counts[f"refused_{reason.lower()}"] += 1
        self.refusals.add(wish, monotonic())
        return Refused(message, reason=reason, retry_after_s=retry_after_s)

    async def seal(self, lease_id: int, generation: int, seal: wishes.Seal) -> Entry:
        """Make what was reserved visible.

        Returns:
            The object's entry: the one that was there, if somebody was faster.

        Raises:
            NotLoaded: the lease is over.
            InvalidRequest: it is not what was reserved, or its bytes are not what was summed.
        """
        lease = self.leases.claim(lease_id, generation)
        if lease is None:
            raise NotLoaded("the write lease is over", reason="STALE_LEASE")
        self.sealing += 1
        try:
            stored = wishes.stored(lease.wish, seal, secrets.token_hex(16), time.time())
            await self._fill(lease, stored, seal.source)
            entry = self._publish(lease, stored, ends_prompt=seal.prompt_boundary)
        except BaseException:
            self.tiers.memory.give(lease.run)
            self.counts["aborted"] += 1
            raise
        finally:
            self.sealing -= 1
        return entry

    async def _fill(
        self, lease: WriteLease, stored: StoredObject, source: tuple[Segment, int] | None
    ) -> None:
        """Have the bytes in the arena, and compare their checksums with the writer's."""
        self._points.reach("seal.claimed")
        memory = self.tiers.memory
        target = memory.view(lease.run)
        sizes = [part.nbytes for part in stored.parts]
        started_s = monotonic()
        if source is None:
            clear_padding(target, sizes)
            checksums = await asyncio.to_thread(checksums_of, target, sizes)
        else:
            staging, offset = source
            to, start = memory.address(lease.run), staging.address + offset
            checksums = await asyncio.to_thread(copy, target, to, start, sizes)
            rate = stored.payload_bytes / max(monotonic() - started_s, 1e-6)
            self.ram_rate += SMOOTHING * (rate - self.ram_rate)
        self._points.reach("seal.copied")
        if checksums != [part.checksum for part in stored.parts]:
            self.counts["corrupt_seals"] += 1
            raise InvalidRequest("checksums", "are not the ones of the payload")

    def _publish(self, lease: WriteLease, stored: StoredObject, *, ends_prompt: bool) -> Entry:
        wish, namespace = lease.wish, self.namespace(stored.root)
        if wishes.parent_end(self.tiers.catalogue, namespace, wish) != wish.first_token:
            self.refusals.add(wish, monotonic())
            raise NotLoaded("what it follows has gone", reason="PARENT_MISSING")
        self.refusals.stored(stored)
        existing = wishes.same(self.tiers.catalogue, stored)
        if existing is not None:
            self.tiers.memory.give(lease.run)
            self.counts["sealed"] += 1
            self.counts["superseded"] += 1
            return existing
        entry = Entry(stored)
        self.tiers.hold(entry, lease.run, monotonic())
        self._note_session(namespace, entry, ends_prompt=ends_prompt)
        self.tiers.supersede_tails(entry, on_disk=False)
        self._points.reach("seal.visible")
        if self.spiller is not None:
            self.spiller.wake()
        log.debug("sealed", extra=facts(object=stored.id, tokens=stored.tokens))
        return entry

    def _note_session(self, namespace: Namespace, entry: Entry, *, ends_prompt: bool) -> None:
        stored, catalogue = entry.object, self.tiers.catalogue
        if stored.session_key:
            line = [
                place.entry.id
                for group in namespace.parent_groups(stored.group)
                for place in catalogue.line(group, stored.parent, stored.root)
            ]
            self.tiers.sessions.stored(entry, line, monotonic(), ends_prompt=ends_prompt)

    def abort(self, lease_id: int, generation: int) -> None:
        """Give up what was reserved; nothing happens if that is over already."""
        lease = self.leases.claim(lease_id, generation)
        if lease is not None:
            self.tiers.memory.give(lease.run)
            self.counts["aborted"] += 1

    # Leases that end by themselves

    def disconnected(self, connection: str) -> None:
        """End the leases of a connection."""
        _, writes = self.leases.end_connection(connection)
        for lease in writes:
            self.tiers.memory.give(lease.run)
        self.counts["aborted"] += len(writes)
        self.tiers.free_retired()

    def expire(self, now_s: float) -> None:
        """End the leases that nobody renewed."""
        reads, writes = self.leases.end_expired(now_s)
        for lease in writes:
            self.tiers.memory.give(lease.run)
        self.counts["expired"] += len(writes)
        self.counts["expired_reads"] += len(reads)
        self.tiers.sessions.end_idle(now_s)
        self.tiers.order.price_some()
        self.tiers.free_retired()

    def gauges(self) -> dict[str, int]:
        """What there is now, by name."""
        writing = len(self.leases.writes) + self.sealing
        found = {"write_leases": writing, "namespaces": len(self.namespaces)}
        return found | gauges(self.tiers, self.spiller, self.scrubber)

    def check(self) -> None:
        """Check that the counts balance.

        Raises:
            AssertionError: something was lost or counted twice.
        """
        self.tiers.check()
        counts = self.counts
        ended = counts["sealed"] + counts["aborted"] + counts["expired"]
        assert counts["reserved"] == ended + len(self.leases.writes) + self.sealing
