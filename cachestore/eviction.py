"""Who leaves first: the objects of both tiers, kept in order, so that choosing looks at few. Pure.

Within a rank the order is that of GreedyDual: an object's age is what its tier's clock showed
when it was last used, plus its worth, and the clock goes on to the age of whoever leaves. So the
worthy stay longer, and whatever is not used any more is overtaken some day.
"""

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.namespaces import PREFILL_RATE
from bramley.cachestore.objects import StoredObject
from bramley.cachestore.policy import hits_after, worth
from bramley.cachestore.sessions import Rank

_REPRICED = 256  # objects at once


class Key(NamedTuple):
    """An object's place in the order; ``turn`` is of its last use, and no two have the same."""

    rank: Rank
    age: float
    turn: int
    id: str


class Queue:
    """Keys in order, one for each object."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._order: list[Key] = []

    def put(self, key: Key) -> None:
        """Take an object in, or move it."""
        if self._keys.get(key.id) != key:
            self.drop(key.id)
            self._keys[key.id] = key
            insort(self._order, key)

    def drop(self, object_id: str) -> None:
        """Forget an object, if it is here."""
        key = self._keys.pop(object_id, None)
        if key is not None:
            del self._order[bisect_left(self._order, key)]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._order)


class Order:
    """Both tiers' order.

    Args:
        catalogue: of all; it tells of each change here.
        rank: what open sessions make of an object.
    """

    def __init__(self, catalogue: Catalogue, rank: Callable[[Entry], Rank]) -> None:
        self._catalogue = catalogue
        self._rank = rank
        self._rates: dict[bytes, float] = {}
        self._copies = Queue()  # in RAM, with a file
        self._unwritten = Queue()  # in RAM alone; leaves
        self._failed = Queue()  # the same, and never to have a file
        self._files = Queue()  # on disk; leaves
        self._ram_clock = 0.0
        self._disk_clock = 0.0
        self._turn = 0
        self._to_price: deque[str] = deque()
        catalogue.watch = self.update

    def fill(self, objects: Iterable[StoredObject], used: Mapping[str, float]) -> None:
        """Take in what a disk holds.

        Args:
            objects: of it, parents before their children.
            used: when each was last used.
        """
        self._catalogue.add_all(Entry(stored, fate="spilled") for stored in objects)
        for object_id in sorted(used, key=lambda each: used[each]):
            entry = self._catalogue.entries[object_id]
            self.used(entry, 0.0)
            self._catalogue.came_to_disk(entry)

    def used(self, entry: Entry, now_s: float) -> None:
        """Note that an object was made, or read."""
        self._turn += 1
        idle_s = now_s - entry.used_s if entry.used_s else 0.0  # it is new, or nobody knows
        entry.hits = hits_after(entry.hits, max(0.0, idle_s))
        entry.used_s = now_s
        entry.turn = self._turn
        entry.ram_clock, entry.disk_clock = self._ram_clock, self._disk_clock
        self._price(entry)

    def update(self, entry: Entry) -> None:
        """Put an object where it belongs now."""
        rank = Rank.ORPHAN if entry.is_orphan else self._rank(entry)
        is_leaf = self._catalogue.is_leaf(entry)
        in_ram, value = entry.run is not None, entry.hits * entry.worth
        ram = Key(rank, entry.ram_clock + value, entry.turn, entry.id)
        is_failed = entry.fate == "failed"
        for queue, is_there in (
            (self._copies, in_ram and entry.on_disk),
            (self._failed, in_ram and not entry.on_disk and is_leaf and is_failed),
            (self._unwritten, in_ram and not entry.on_disk and is_leaf and not is_failed),
        ):
            if is_there:
                queue.put(ram)
            else:
                queue.drop(entry.id)
        if entry.on_disk and is_leaf:
            self._files.put(ram._replace(age=entry.disk_clock + value))
        else:
            self._files.drop(entry.id)

    def update_all(self, object_ids: Iterable[str]) -> None:
        """Put several where they belong; those that are not there are left out."""
        for object_id in object_ids:
            entry = self._catalogue.entries.get(object_id)
            if entry is not None:
                self.update(entry)

    def set_rate(self, root: bytes, prefill_rate: float) -> None:
        """Price a namespace's objects anew, a few at each ``price_some``."""
        if self._rates.get(root, PREFILL_RATE) != prefill_rate:
            self._to_price.extend(self._catalogue.of_namespace(root))
        self._rates[root] = prefill_rate

    def forget_rate(self, root: bytes) -> None:
        """Forget a namespace that has no objects."""
        self._rates.pop(root, None)

    def price_some(self) -> None:
        """Go on with pricing."""
        for _ in range(min(_REPRICED, len(self._to_price))):
            entry = self._catalogue.entries.get(self._to_price.popleft())
            if entry is not None:
                self._price(entry)

    def _price(self, entry: Entry) -> None:
        rate = self._rates.get(entry.object.root, PREFILL_RATE)
        entry.worth = worth(entry.object, rate)
        self.update(entry)

    def ram_victim(self, is_free: Callable[[Entry], bool], *, may_lose: bool) -> Entry | None:
        """Choose whose bytes leave RAM.

        Args:
            is_free: whether nobody holds the object.
            may_lose: whether an object may go that still waits for its file.

        Returns:
            The victim; it is lost if it is not on disk.
        """
        queues = [self._copies, self._failed, *([self._unwritten] if may_lose else [])]
        key, victim = self._first(heapq.merge(*queues), is_free)
        self._ram_clock = max(self._ram_clock, key.age if key else 0.0)
        return victim

    def disk_victim(self, is_free: Callable[[Entry], bool]) -> Entry | None:
        """Choose whose file is removed: nothing follows from it."""
        key, victim = self._first(self._files, is_free)
        self._disk_clock = max(self._disk_clock, key.age if key else 0.0)
        return victim

    def _first(
        self, keys: Iterable[Key], is_free: Callable[[Entry], bool]
    ) -> tuple[Key | None, Entry | None]:
        for key in keys:
            entry = self._catalogue.entries[key.id]
            if is_free(entry):
                return key, entry
        return None, None
