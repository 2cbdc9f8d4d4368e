"""What the store holds, found by chain hash: the hashes are the radix tree.

Nothing here decides; matching.py reads it, eviction.py chooses from it, tiers.py changes it.
"""

from bisect import bisect, bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        kept: tasks that will need it, wherever it is by then.
        used_s: when it was last used.
        turn: of its last use, among all uses.
        hits: how often it was used lately.
        worth: of one hit; see policy.py.
        ram_clock: of the RAM tier at its last use; see eviction.py.
        disk_clock: of the SSD tier.
        is_orphan: whether what it follows is missing, so that no prompt reaches it.
        failed_reads: of its file, for which it is not to blame.
        was_missing: whether its file was not there when it was last looked for.
        pinned_until_s: an administrator's pin.
    """

    object: StoredObject
    run: Run | None = None
    on_disk: bool = False
    fate: Fate = "pending"
    holds: int = 0
    kept: int = 0
    used_s: float = 0.0
    turn: int = 0
    hits: float = 1.0
    worth: float = 0.0
    ram_clock: float = 0.0
    disk_clock: float = 0.0
    is_orphan: bool = False
    failed_reads: int = 0
    was_missing: bool = False
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
        ids: of all, sorted.
        ram: those with bytes in RAM.
        disk: those on disk.
        ram_bytes: payload in RAM.
        disk_bytes: payload on disk.
        orphans: how many no prompt reaches.
        watch: told of each entry whose place in RAM, on disk or in the tree has changed.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.ids: list[str] = []
        self.ram: dict[str, Entry] = {}
        self.disk: dict[str, Entry] = {}
        self.ram_bytes = 0
        self.disk_bytes = 0
        self.orphans = 0
        self.watch: Callable[[Entry], None] = lambda _: None
        self._required: dict[bytes, Sequence[str]] = {}
        self._groups: set[str] = set()
        self._namespaces: dict[bytes, set[str]] = {}
        self._blocks: dict[_Key, list[Place]] = {}
        self._followers: dict[_Key, list[Place]] = {}  # of a hash, sorted by their tokens
        self._states: dict[_Key, dict[int, dict[bytes, Entry]]] = {}
        self._ends: dict[_Key, Entry] = {}  # tails and states by their own hash
        self._twins: dict[_Key, list[Entry]] = {}  # of those, the same stored once more
        self._children: dict[bytes, set[str]] = {}
        self._sessions: dict[tuple[bytes, str], set[str]] = {}

    def add(self, entry: Entry) -> None:
        """Make an entry findable; neither in RAM nor on disk, as far as is known here."""
        insort(self.ids, entry.id)
        self._add(entry)

    def add_all(self, entries: Iterable[Entry]) -> None:
        """Do so with many; parents come before their children."""
        for entry in entries:
            self._add(entry)
        self.ids = sorted(self.entries)  # each at its place would take far longer

    def _add(self, entry: Entry) -> None:
        stored = entry.object
        self.entries[entry.id] = entry
        self._groups.add(stored.group)
        self._namespaces.setdefault(stored.root, set()).add(entry.id)
        self._children.setdefault(stored.parent, set()).add(entry.id)
        self._sessions.setdefault((stored.root, stored.session_key), set()).add(entry.id)
        if stored.kind == "state":
            by_length = self._states.setdefault((stored.group, stored.parent), {})
            by_length.setdefault(stored.tokens, {})[stored.token_ids_le] = entry
            self._add_end(entry)
            self._came(entry)
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
            self._add_end(entry)
        self._came(entry)

    def _add_end(self, entry: Entry) -> None:
        key = (entry.object.group, entry.object.chain)
        if key in self._ends:
            self._twins.setdefault(key, []).append(self._ends[key])
        self._ends[key] = entry

    def _remove_end(self, entry: Entry) -> None:
        """Forget a tail or state; its twin, if there is one, is found in its place."""
        key = (entry.object.group, entry.object.chain)
        if self._ends.get(key) is not entry:
            if entry in self._twins.get(key, ()):
                _drop(self._twins, key, entry)
        elif key in self._twins:
            twin = self._ends[key] = self._twins[key][-1]
            _drop(self._twins, key, twin)
        else:
            del self._ends[key]

    def _came(self, entry: Entry) -> None:
        entry.is_orphan = not self._follows(entry)
        self.orphans += entry.is_orphan
        self._tell_parents(entry)
        if entry.object.kind == "extent" and not entry.is_orphan:
            self._look_again(part.chain for part in entry.object.parts)

    def remove(self, entry: Entry) -> None:
        """Forget an entry; its bytes are the caller's affair."""
        stored = entry.object
        self.left_ram(entry)
        self.left_disk(entry)
        del self.entries[entry.id]
        del self.ids[bisect_left(self.ids, entry.id)]
        self.orphans -= entry.is_orphan
        _drop(self._namespaces, stored.root, entry.id)
        _drop(self._children, stored.parent, entry.id)
        _drop(self._sessions, (stored.root, stored.session_key), entry.id)
        self._tell_parents(entry)
        self._remove_end(entry)
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
        self._look_again(part.chain for part in stored.parts)

    def _remove_state(self, entry: Entry) -> None:
        stored = entry.object
        key = (stored.group, stored.parent)
        by_length = self._states.get(key, {})
        same_length = by_length.get(stored.tokens, {})
        if same_length.get(stored.token_ids_le) is not entry:
            return  # the same was stored once more
        twin = self._ends.get((stored.group, stored.chain))
        if twin is not None:
            same_length[stored.token_ids_le] = twin
            return
        del same_length[stored.token_ids_le]
        if not same_length:
            del by_length[stored.tokens]
        if not by_length:
            del self._states[key]

    # Who follows whom

    def require(self, root: bytes, groups: Sequence[str]) -> None:
        """Say which groups' blocks a state of a namespace follows; until then, none's."""
        if self._required.get(root, ()) != groups:
            self._required[root] = groups
            for object_id in self._namespaces.get(root, ()):
                if self.entries[object_id].object.kind == "state":
                    self._judge(self.entries[object_id])

    def forget_namespace(self, root: bytes) -> None:
        """Forget what was said of a namespace; it has no objects."""
        self._required.pop(root, None)

    def of_namespace(self, root: bytes) -> Sequence[str]:
        """The ids of a namespace's objects."""
        return tuple(self._namespaces.get(root, ()))

    def _follows(self, entry: Entry) -> bool:
        """Whether a prompt can reach an object."""
        stored = entry.object
        if stored.parent == stored.root:
            return True
        own = (stored.group,)
        groups = self._required.get(stored.root, ()) if stored.kind == "state" else own
        return all(self.is_reachable(group, stored.parent, stored.root) for group in groups)

    def _look_again(self, chains: Iterable[bytes]) -> None:
        """Judge anew who follows from ``chains``, and on from those that changed."""
        left = list(chains)
        while left:
            for object_id in self._children.get(left.pop(), ()):
                child = self.entries[object_id]
                if self._judge(child) and child.object.kind == "extent":
                    left += [part.chain for part in child.object.parts]

    def _judge(self, entry: Entry) -> bool:
        is_orphan = not self._follows(entry)
        if entry.is_orphan == is_orphan:
            return False
        entry.is_orphan = is_orphan
        self.orphans += 1 if is_orphan else -1
        self.watch(entry)
        return True

    def _tell_parents(self, entry: Entry) -> None:
        """Tell of the objects that it follows: they became leaves, or are none any more."""
        for group in self._groups:
            for place in self._blocks.get((group, entry.object.parent), ()):
                self.watch(place.entry)

    def is_leaf(self, entry: Entry) -> bool:
        """Whether nothing follows from it."""
        if entry.object.kind != "extent":
            return True
        return not any(part.chain in self._children for part in entry.object.parts)

    def is_reachable(self, group: str, chain: bytes, root: bytes) -> bool:
        """Whether an unbroken line of whole blocks leads from the root to ``chain``."""
        places = self._blocks.get((group, chain), ())
        return chain == root or any(not place.entry.is_orphan for place in places)

    # Where its bytes are

    def came_to_ram(self, entry: Entry, run: Run) -> None:
        """Note where its bytes are."""
        entry.run = run
        self.ram[entry.id] = entry
        self.ram_bytes += entry.object.payload_bytes
        self.watch(entry)

    def left_ram(self, entry: Entry) -> Run | None:
        """Note that its bytes are gone, and say where they were."""
        run, entry.run = entry.run, None
        if run is not None:
            del self.ram[entry.id]
            self.ram_bytes -= entry.object.payload_bytes
            self.watch(entry)
        return run

    def came_to_disk(self, entry: Entry) -> None:
        """Note that its file is published."""
        entry.on_disk = True
        self.disk[entry.id] = entry
        self.disk_bytes += entry.object.payload_bytes
        self.watch(entry)

    def left_disk(self, entry: Entry) -> None:
        """Note that its file is not to be used any more."""
        if entry.on_disk:
            entry.on_disk = False
            del self.disk[entry.id]
            self.disk_bytes -= entry.object.payload_bytes
            self.watch(entry)

    # Finding

    def in_order(self, after: str = "", begins: str = "") -> Iterator[Entry]:
        """The entries by their ids, also while others come and go.

        Args:
            after: an id; those up to it are left out.
            begins: what their ids begin with.

        Yields:
            Each that is there when it is its turn.
        """
        at = max(bisect(self.ids, after), bisect_left(self.ids, begins))
        while at < len(self.ids) and self.ids[at].startswith(begins):
            after = self.ids[at]
            yield self.entries[after]
            at = bisect(self.ids, after)

    def block(self, group: str, chain: bytes) -> Place | None:
        """Find a whole block by its hash, where a prompt reaches it and in RAM, if possible."""
        places = self._blocks.get((group, chain), ())
        return min(places, key=_distance, default=None)

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

    def line(self, group: str, chain: bytes, root: bytes) -> Iterator[Place]:
        """The objects that lead to ``chain``, from its end back to the root or to a gap."""
        while chain != root and (place := self.block(group, chain)) is not None:
            yield place
            chain = place.entry.object.parent

    def of_session(self, root: bytes, session_key: str) -> list[Entry]:
        """All that was stored under a session's key, or without one."""
        return [self.entries[name] for name in self._sessions.get((root, session_key), ())]


def _distance(place: Place) -> tuple[bool, bool]:
    return place.entry.is_orphan, place.entry.run is None


def _tokens(place: Place) -> bytes:
    return place.tokens


def _drop(
    table: "dict[_Name, list[_Item]] | dict[_Name, set[_Item]]", key: _Name, item: _Item
) -> None:
    values = table[key]
    values.remove(item)
    if not values:
        del table[key]
