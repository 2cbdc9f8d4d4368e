"""What the store holds, found by chain hash: the hashes are the radix tree.

Nothing here decides; matching.py reads it, policy.py chooses from it, store.py changes it.
"""

from bisect import bisect, bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from bramley.cachestore.arena import Run
from bramley.cachestore.objects import BLOCK, StoredObject

TOKEN_BYTES = 4

# What became of a sealed object's way to the disk; each ends at one of the last four.
Fate = Literal["pending", "spilled", "superseded", "evicted_clean", "failed"]


@dataclass(eq=False, slots=True)
class Entry:
    """An object in the store.

    Attributes:
        object: all but the payload.
        run: its bytes in RAM, if they are there.
        on_disk: whether its file is published.
        fate: of its way to the disk.
        holds: tasks that need it as it is now.
        used_s: when it was last used.
        failed_reads: of its file, for which it is not to blame.
        pinned_until_s: an administrator's pin.
    """

    object: StoredObject
    run: Run | None = None
    on_disk: bool = False
    fate: Fate = "pending"
    holds: int = 0
    used_s: float = 0.0
    failed_reads: int = 0
    pinned_until_s: float = 0.0

    @property
    def id(self) -> str:
        """Name of the object."""
        return self.object.id

    @property
    def end_token(self) -> int:
        """Tokens up to its end."""
        return self.object.first_token + self.object.tokens


class Place(NamedTuple):
    """One part of an extent or tail."""

    entry: Entry
    part: int

    @property
    def tokens(self) -> bytes:
        """The part's token ids."""
        start = self.part * BLOCK * TOKEN_BYTES
        return self.entry.object.token_ids_le[start : start + BLOCK * TOKEN_BYTES]

    @property
    def end(self) -> int:
        """Where in the bytes of its object's token ids the part's end."""
        return (self.part + 1) * BLOCK * TOKEN_BYTES

    @property
    def first_token(self) -> int:
        """Tokens before the part."""
        return self.entry.object.first_token + self.part * BLOCK


_Key = tuple[str, bytes]  # group, chain hash
_Name = TypeVar("_Name")
_Item = TypeVar("_Item")


class Catalogue:
    """All entries.

    Attributes:
        entries: by id.
        ram: those with bytes in RAM, least recently used first.
        disk: those on disk, least recently used first.
        ram_bytes: payload in RAM.
        disk_bytes: payload on disk.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.ram: OrderedDict[str, Entry] = OrderedDict()
        self.disk: OrderedDict[str, Entry] = OrderedDict()
        self.ram_bytes = 0
        self.disk_bytes = 0
        self._blocks: dict[_Key, list[Place]] = {}
        self._followers: dict[_Key, list[Place]] = {}  # of a hash, sorted by their tokens
        self._states: dict[_Key, dict[int, dict[bytes, Entry]]] = {}
        self._ends: dict[_Key, Entry] = {}  # tails and states by their own hash
        self._children: dict[bytes, set[str]] = {}
        self._sessions: dict[tuple[bytes, str], set[str]] = {}

    def add(self, entry: Entry) -> None:
        """Make an entry findable; neither in RAM nor on disk, as far as is known here."""
        stored = entry.object
        self.entries[entry.id] = entry
        self._children.setdefault(stored.parent, set()).add(entry.id)
        self._sessions.setdefault((stored.root, stored.session_key), set()).add(entry.id)
        if stored.kind == "state":
            by_length = self._states.setdefault((stored.group, stored.parent), {})
            by_length.setdefault(stored.tokens, {})[stored.token_ids_le] = entry
            self._ends[stored.group, stored.chain] = entry
            return
        before = stored.parent
        for number, part in enumerate(stored.parts):
            place = Place(entry, number)
            if stored.kind == "extent":
                self._blocks.setdefault((stored.group, part.chain), []).append(place)
            followers = self._followers.setdefault((stored.group, before), [])
            followers.insert(bisect(followers, place.tokens, key=_tokens), place)
            before = part.chain
        if stored.kind == "tail":
            self._ends[stored.group, stored.chain] = entry

    def remove(self, entry: Entry) -> None:
        """Forget an entry; its bytes are the caller's affair."""
        stored = entry.object
        self.left_ram(entry)
        self.left_disk(entry)
        del self.entries[entry.id]
        _drop(self._children, stored.parent, entry.id)
        _drop(self._sessions, (stored.root, stored.session_key), entry.id)
        if self._ends.get((stored.group, stored.chain)) is entry:
            del self._ends[stored.group, stored.chain]
        if stored.kind == "state":
            self._remove_state(entry)
            return
        before = stored.parent
        for number, part in enumerate(stored.parts):
            place = Place(entry, number)
            if stored.kind == "extent":
                _drop(self._blocks, (stored.group, part.chain), place)
            _drop(self._followers, (stored.group, before), place)
            before = part.chain

    def _remove_state(self, entry: Entry) -> None:
        stored = entry.object
        key = (stored.group, stored.parent)
        by_length = self._states[key]
        same_length = by_length[stored.tokens]
        if same_length.get(stored.token_ids_le) is entry:
            del same_length[stored.token_ids_le]
        if not same_length:
            del by_length[stored.tokens]
        if not by_length:
            del self._states[key]

    def came_to_ram(self, entry: Entry, run: Run) -> None:
        """Note where its bytes are."""
        entry.run = run
        self.ram[entry.id] = entry
        self.ram_bytes += entry.object.payload_bytes

    def left_ram(self, entry: Entry) -> Run | None:
        """Note that its bytes are gone, and say where they were."""
        run, entry.run = entry.run, None
        if run is not None:
            del self.ram[entry.id]
            self.ram_bytes -= entry.object.payload_bytes
        return run

    def came_to_disk(self, entry: Entry) -> None:
        """Note that its file is published."""
        entry.on_disk = True
        self.disk[entry.id] = entry
        self.disk_bytes += entry.object.payload_bytes

    def left_disk(self, entry: Entry) -> None:
        """Note that its file is not to be used any more."""
        if entry.on_disk:
            entry.on_disk = False
            del self.disk[entry.id]
            self.disk_bytes -= entry.object.payload_bytes

    def touch(self, entry: Entry, now_s: float) -> None:
        """Make it the most recently used."""
        entry.used_s = now_s
        for order in (self.ram, self.disk):
            if entry.id in order:
                order.move_to_end(entry.id)

    def block(self, group: str, chain: bytes) -> Place | None:
        """Find a whole block by its hash, in RAM where possible."""
        places = self._blocks.get((group, chain))
        if not places:
            return None
        return next((place for place in places if place.entry.run is not None), places[0])

    def end(self, group: str, chain: bytes) -> Entry | None:
        """Find a tail or state by its hash."""
        return self._ends.get((group, chain))

    def nearest(self, group: str, chain: bytes, tokens: bytes) -> Iterator[Place]:
        """The parts after ``chain`` whose tokens are next to ``tokens`` in order.

        Yields:
            The one before and the one after: whatever shares most with ``tokens`` is among them.
        """
        followers = self._followers.get((group, chain), [])
        at = bisect_left(followers, tokens, key=_tokens)
        yield from followers[max(0, at - 1) : at + 1]

    def covered_tails(self, stored: StoredObject) -> list[Entry]:
        """Find the tails that are leading parts of an object's parts, itself apart."""
        if stored.kind == "state":
            return []
        covered: list[Entry] = []
        before = stored.parent
        for at, part in enumerate(stored.parts):
            start = at * BLOCK * TOKEN_BYTES
            tokens = stored.token_ids_le[start : start + part.tokens * TOKEN_BYTES]
            for place in self.nearest(stored.group, before, tokens):
                tail = place.entry
                is_tail = tail.object.kind == "tail" and tail.id != stored.id
                if is_tail and tokens.startswith(place.tokens):
                    covered.append(tail)
            before = part.chain
        return covered

    def states(self, group: str, chain: bytes) -> dict[int, dict[bytes, Entry]]:
        """The states after ``chain``, by how many tokens later and which."""
        return self._states.get((group, chain), {})

    def is_leaf(self, entry: Entry) -> bool:
        """Whether nothing follows from it."""
        if entry.object.kind != "extent":
            return True
        return not any(part.chain in self._children for part in entry.object.parts)

    def is_reachable(self, group: str, chain: bytes, root: bytes) -> bool:
        """Whether an unbroken line of whole blocks leads from the root to ``chain``."""
        for place in self.line(group, chain, root):
            chain = place.entry.object.parent
        return chain == root

    def line(self, group: str, chain: bytes, root: bytes) -> Iterator[Place]:
        """The objects that lead to ``chain``, from its end back to the root or to a gap."""
        while chain != root and (place := self.block(group, chain)) is not None:
            yield place
            chain = place.entry.object.parent

    def of_session(self, root: bytes, session_key: str) -> list[Entry]:
        """All that was stored under a session's key, or without one."""
        return [self.entries[name] for name in self._sessions.get((root, session_key), ())]


def _tokens(place: Place) -> bytes:
    return place.tokens


def _drop(
    table: "dict[_Name, list[_Item]] | dict[_Name, set[_Item]]", key: _Name, item: _Item
) -> None:
    values = table[key]
    values.remove(item)
    if not values:
        del table[key]
