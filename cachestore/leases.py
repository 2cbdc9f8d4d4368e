"""Who may read or write what, until when: read leases pin objects, write leases hold room.

A lease ends by its holder, with its holder's connection, or when nobody renewed it in time.
A write lease is named by its id and its generation together, and generations never repeat,
not even in the next incarnation: what comes late from a writer is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bramley.cachestore.arena import Run
from bramley.cachestore.objects import Kind


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a writer reserved room for; as in ReserveRequest.

    Attributes:
        parent: chain hash that it follows, or the root.
        chain: hash at its end; empty if the writer did not say.
        nbytes: of all parts, without padding.
    """

    root: bytes
    kind: Kind
    group: str
    parent: bytes
    chain: bytes
    first_token: int
    tokens: int
    nbytes: int


@dataclass
class ReadLease:
    """Pins objects in RAM."""

    id: int
    connection: str
    objects: tuple[str, ...]
    deadline_s: float


@dataclass
class WriteLease:
    """Holds a run of the arena for one object to come."""

    id: int
    generation: int
    connection: str
    wish: Wish
    run: Run
    deadline_s: float


class Leases:
    """All leases of a store.

    Args:
        ttl_s: how long one lives without being renewed.
        epoch: of the store; makes generations unique.
    """

    def __init__(self, ttl_s: float, epoch: int) -> None:
        self._ttl_s = ttl_s
        self._last_id = 0
        self._generation = epoch << 32
        self.reads: dict[int, ReadLease] = {}
        self.writes: dict[int, WriteLease] = {}
        self._pins: Counter[str] = Counter()

    def is_pinned(self, object_id: str) -> bool:
        """Whether a read lease holds the object."""
        return object_id in self._pins

    def read(self, connection: str, objects: Iterable[str], now_s: float) -> ReadLease:
        """Pin objects."""
        lease = ReadLease(self._next_id(), connection, tuple(objects), now_s + self._ttl_s)
        self.reads[lease.id] = lease
        self._pins.update(lease.objects)
        return lease

    def release(self, lease_id: int) -> ReadLease | None:
        """End a read lease; None if it has ended already."""
        lease = self.reads.pop(lease_id, None)
        if lease is not None:
            for name in lease.objects:
                self._pins[name] -= 1
                if not self._pins[name]:
                    del self._pins[name]
        return lease

    def write(self, connection: str, wish: Wish, run: Run, now_s: float) -> WriteLease:
        """Hold a run."""
        self._generation += 1
        deadline_s = now_s + self._ttl_s
        lease = WriteLease(self._next_id(), self._generation, connection, wish, run, deadline_s)
        self.writes[lease.id] = lease
        return lease

    def find(self, lease_id: int, generation: int) -> WriteLease | None:
        """Find a write lease by both its names."""
        lease = self.writes.get(lease_id)
        return lease if lease is not None and lease.generation == generation else None

    def claim(self, lease_id: int, generation: int) -> WriteLease | None:
        """End a write lease; its run is the caller's now. None if it has ended already."""
        lease = self.find(lease_id, generation)
        return self.writes.pop(lease_id) if lease is not None else None

    def touch(self, connection: str, lease_ids: Iterable[int], now_s: float) -> list[int]:
        """Renew leases of a connection, and name those that have ended."""
        ended: list[int] = []
        for lease_id in lease_ids:
            lease = self.reads.get(lease_id) or self.writes.get(lease_id)
            if lease is None or lease.connection != connection or lease.deadline_s <= now_s:
                ended.append(lease_id)
            else:
                lease.deadline_s = now_s + self._ttl_s
        return ended

    def end_expired(self, now_s: float) -> tuple[list[ReadLease], list[WriteLease]]:
        """End all leases whose time is over, and return them."""
        return self._end(lambda lease: lease.deadline_s <= now_s)

    def end_connection(self, connection: str) -> tuple[list[ReadLease], list[WriteLease]]:
        """End all leases of a connection, and return them."""
        return self._end(lambda lease: lease.connection == connection)

    def _end(
        self, is_over: Callable[[ReadLease | WriteLease], bool]
    ) -> tuple[list[ReadLease], list[WriteLease]]:
        reads = [lease for lease in self.reads.values() if is_over(lease)]
        writes = [lease for lease in self.writes.values() if is_over(lease)]
        for read in reads:
            self.release(read.id)
        for write in writes:
            del self.writes[write.id]
        return reads, writes

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
