"""The store: matching, leases, sealing. Every call is one step on the event loop.

A sealed object is visible only after its bytes lie where no worker can write and their
checksums were taken there. Whoever is refused hears why, and every sealed object has a fate.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from bramley.cachestore import keys, matching
from bramley.cachestore.catalogue import TOKEN_BYTES, Entry
from bramley.cachestore.copying import checksums_of, clear_padding, copy
from bramley.cachestore.keys import HASH_BYTES, Identity
from bramley.cachestore.leases import ReadLease, Wish, WriteLease
from bramley.cachestore.matching import Found, Group, Query
from bramley.cachestore.namespaces import PREFILL_RATE, Namespace
from bramley.cachestore.objects import BLOCK, EXTENT_BLOCKS_MAX, Part, StoredObject, padded
from bramley.cachestore.points import Points
from bramley.cachestore.segments import Segment
from bramley.cachestore.spill import Spiller
from bramley.cachestore.tiers import READ_WAIT_S, SMOOTHING, Tiers
from bramley.common.errors import BramleyError, InvalidRequest, NotLoaded, UnknownResource
from bramley.common.logs import facts

log = logging.getLogger(__name__)

CHECKSUM_BYTES = 16
RETRY_AFTER_S = 1.0


class Refused(BramleyError):
    """No room is reserved; ``reason`` is one of ReserveResponse.Refusal without its prefix."""

    code = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Existing:
    """Somebody stored the same already."""

    object_id: str


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What a writer says of what it wrote; as in SealRequest.

    Attributes:
        source: the writer's staging, and where in it the payload is; None if it is in place.
    """

    chains: bytes
    token_ids_le: bytes
    checksums: bytes
    header: bytes
    session_key: str = ""
    source: tuple[Segment, int] | None = None


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
        sealing: Seal calls under way.
        is_draining: whether it takes nothing more.
        ram_rate: bytes a second of copying, as last measured.
        touched: objects used since that was last noted.
        refused: reservations of each namespace since its last flush.
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
        self.sealing = 0
        self.is_draining = False
        self.ram_rate = 4e9
        self.touched: set[str] = set()
        self.refused: Counter[bytes] = Counter()
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
        namespace = self.namespaces[root] = Namespace(root, identity, tuple(groups), rate)
        self.tiers.catalogue.require(root, namespace.trunk)
        self.tiers.order.set_rate(root, rate)
        return root

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
        return found

    # Reading

    def match(self, query: Query) -> Found:
        """Find the longest prefixes of a request that can be used, and count it."""
        found = self.find(query)
        if not self.counts["matches"] and self.spiller is not None:
            self.spiller.wake()
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
        """
        namespace = self.namespace(wish.root)
        self._check_wish(namespace, wish)
        existing = self._existing(namespace, wish) if wish.chain else None
        if existing is not None:
            return Existing(existing.id)
        if not self._parent_end(namespace, wish) == wish.first_token:
            raise self._refused(wish, "PARENT_MISSING", "what it follows is not here")
        sizes = _sizes(wish)
        size = sum(padded(one) for one in sizes)
        if size > self._limits.oversize:
            raise self._refused(
                wish, "OVERSIZE", f"{size} bytes; {self._limits.oversize} are taken at most"
            )
        self._check_queue(wish, size)
        run = await self.tiers.memory.take(size)
        if run is None:
            raise self._full(wish)
        self.counts["reserved"] += 1
        return self.leases.write(connection, wish, run, monotonic())

    def _check_wish(self, namespace: Namespace, wish: Wish) -> None:
        group = namespace.group(wish.group)
        if group is None:
            raise InvalidRequest("group", f"the namespace has no group {wish.group!r}")
        if group.sliceable == (wish.kind == "state"):
            raise InvalidRequest("kind", f"{wish.group} does not hold a {wish.kind}")
        if wish.first_token % BLOCK or len(wish.parent) != HASH_BYTES:
            raise InvalidRequest("parent", "it does not end a whole block")
        blocks, more = divmod(wish.tokens, BLOCK)
        right = {
            "extent": 0 < blocks <= EXTENT_BLOCKS_MAX and not more,
            "tail": wish.tokens > 0 and not blocks,
            "state": not blocks,
        }
        if not right[wish.kind]:
            raise InvalidRequest("tokens", f"a {wish.kind} cannot have {wish.tokens}")
        if wish.nbytes <= 0 or (blocks and wish.nbytes % blocks):
            raise InvalidRequest("bytes", "they are not so many for each part")

    def _check_queue(self, wish: Wish, size: int) -> None:
        if self.is_draining:
            raise self._refused(wish, "BREAKER_OPEN", "the store is stopping")
        if self.spiller is None or self.spiller.breaker.has_tripped:
            return
        if self.tiers.pending_bytes + size > self._limits.queue_bytes:
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
        self.refused[wish.root] += 1
        return Refused(message, reason=reason, retry_after_s=retry_after_s)

    def _parent_end(self, namespace: Namespace, wish: Wish) -> int | None:
        """Tokens up to where the object is to follow; None if that is not here."""
        groups = namespace.parent_groups(wish.group)
        if wish.parent == wish.root:
            return 0
        if not groups:
            return wish.first_token
        catalogue = self.tiers.catalogue
        places = [catalogue.block(group, wish.parent) for group in groups]
        ends = {place.first_token + BLOCK for place in places if place is not None}
        whole = all(catalogue.is_reachable(group, wish.parent, wish.root) for group in groups)
        return ends.pop() if whole and len(ends) == 1 else None

    def _existing(self, namespace: Namespace, wish: Wish) -> Entry | None:
        catalogue = self.tiers.catalogue
        if wish.kind != "extent":
            return catalogue.end(wish.group, wish.chain)
        place = catalogue.block(wish.group, wish.chain)
        if place is not None and catalogue.is_reachable(wish.group, wish.chain, wish.root):
            return place.entry
        return None

    async def seal(self, lease_id: int, generation: int, seal: Seal) -> Entry:
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
            stored = self._stored(lease.wish, seal)
            await self._fill(lease, stored, seal.source)
            entry = self._publish(lease, stored)
        except BaseException:
            self.tiers.memory.give(lease.run)
            self.counts["aborted"] += 1
            raise
        finally:
            self.sealing -= 1
        return entry

    def _stored(self, wish: Wish, seal: Seal) -> StoredObject:
        sizes = _sizes(wish)
        if len(seal.token_ids_le) != wish.tokens * TOKEN_BYTES:
            raise InvalidRequest("token_ids_le", f"{wish.tokens} were reserved")
        if len(seal.chains) != HASH_BYTES * len(sizes):
            raise InvalidRequest("block_hashes", f"{len(sizes)} were reserved")
        if len(seal.checksums) != CHECKSUM_BYTES * len(sizes):
            raise InvalidRequest("checksums", f"{len(sizes)} were reserved")
        if seal.chains != _chains(wish, seal.token_ids_le):
            raise InvalidRequest("block_hashes", "are not the ones of these tokens")
        parts = tuple(
            Part(
                chain=seal.chains[HASH_BYTES * at : HASH_BYTES * (at + 1)],
                tokens=BLOCK if wish.kind == "extent" else wish.tokens,
                nbytes=size,
                checksum=seal.checksums[CHECKSUM_BYTES * at : CHECKSUM_BYTES * (at + 1)],
            )
            for at, size in enumerate(sizes)
        )
        return StoredObject(
            id=secrets.token_hex(16),
            root=wish.root,
            kind=wish.kind,
            group=wish.group,
            parent=wish.parent,
            first_token=wish.first_token,
            token_ids_le=seal.token_ids_le,
            parts=parts,
            header=seal.header,
            session_key=seal.session_key,
            created_s=time.time(),
        )

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

    def _publish(self, lease: WriteLease, stored: StoredObject) -> Entry:
        wish, namespace = lease.wish, self.namespace(stored.root)
        if self._parent_end(namespace, wish) != wish.first_token:
            raise NotLoaded("what it follows has gone", reason="PARENT_MISSING")
        existing = self._same(namespace, stored)
        if existing is not None:
            self.tiers.memory.give(lease.run)
            self.counts["sealed"] += 1
            self.counts["superseded"] += 1
            return existing
        entry = Entry(stored)
        self.tiers.hold(entry, lease.run, monotonic())
        self._note_session(namespace, entry)
        self.tiers.supersede_tails(entry, on_disk=False)
        self._points.reach("seal.visible")
        if self.spiller is not None:
            self.spiller.wake()
        log.debug("sealed", extra=facts(object=stored.id, tokens=stored.tokens))
        return entry

    def _note_session(self, namespace: Namespace, entry: Entry) -> None:
        stored, catalogue = entry.object, self.tiers.catalogue
        if stored.session_key:
            line = [
                place.entry.id
                for group in namespace.parent_groups(stored.group)
                for place in catalogue.line(group, stored.parent, stored.root)
            ]
            self.tiers.sessions.stored(entry, line, monotonic())

    def _same(self, namespace: Namespace, stored: StoredObject) -> Entry | None:
        """Find an object that holds all that a new one does."""
        catalogue = self.tiers.catalogue
        if stored.kind == "extent":
            found = [catalogue.block(stored.group, part.chain) for part in stored.parts]
            return found[-1].entry if all(found) and found[-1] is not None else None
        if stored.kind == "state":
            return catalogue.end(stored.group, stored.chain)
        for place in catalogue.nearest(stored.group, stored.parent, stored.token_ids_le):
            if place.tokens.startswith(stored.token_ids_le):
                return place.entry
        return None

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
        tiers = self.tiers
        return {
            "objects": len(tiers.catalogue.entries),
            "ram_bytes": tiers.catalogue.ram_bytes,
            "ram_segment_bytes": tiers.memory.arena.total_bytes,
            "ram_budget_bytes": tiers.memory.arena.budget,
            "ssd_bytes": tiers.disk.used_bytes if tiers.disk is not None else 0,
            "ssd_budget_bytes": self.spiller.budget if self.spiller is not None else 0,
            "ssd_is_on": int(tiers.disk is not None),
            "ssd_is_failing": int(tiers.is_disk_failing or tiers.reads.late > 0),
            "breaker_is_full": int(self.spiller is not None and self.spiller.breaker.is_full),
            "ssd_late_reads": tiers.reads.late,
            "sessions": len(tiers.sessions),
            "pending": len(tiers.pending),
            "pending_bytes": tiers.pending_bytes,
            "read_leases": len(self.leases.reads),
            "write_leases": len(self.leases.writes) + self.sealing,
        }

    def check(self) -> None:
        """Check that the counts balance.

        Raises:
            AssertionError: something was lost or counted twice.
        """
        self.tiers.check()
        counts = self.counts
        ended = counts["sealed"] + counts["aborted"] + counts["expired"]
        assert counts["reserved"] == ended + len(self.leases.writes) + self.sealing


def _sizes(wish: Wish) -> list[int]:
    """Bytes of each part, without padding."""
    count = wish.tokens // BLOCK if wish.kind == "extent" else 1
    return [wish.nbytes // count] * count


def _chains(wish: Wish, token_ids_le: bytes) -> bytes:
    if wish.kind == "extent":
        return keys.chain(wish.parent, token_ids_le)
    return keys.tail_hash(wish.parent, token_ids_le) if token_ids_le else wish.parent
