"""A store of one process for engine tests: keeps what is saved, lends what a prompt begins with."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from bramley.cachestore import keys, matching
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.exchange import Snapshot
from bramley.cachestore.matching import Group, Query, Use
from bramley.cachestore.objects import BLOCK, Part, StoredObject, padded
from bramley.worker.cache.saved import Restore, Saving, StoredPart, StoredState
from bramley.worker.cache.snapshot import part_bytes, sliceable, stateful
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.outputs import Saved
from bramley.worker.owed import Account
from bramley.worker.prefix import KV, STATE

ROOT = bytes(keys.HASH_BYTES)


@dataclass(slots=True)
class Room:
    """Memory of one object."""

    view: memoryview
    is_released: bool = False

    def release(self) -> None:
        """Note it."""
        self.is_released = True


class Shelf:
    """Saved spans, found as the store would.

    Attributes:
        saved: what there is.
        rooms: all that was ever asked for, of each object.
        lent: prefixes that were lent and not given back.
        is_held: what a borrower hears of its lease.
    """

    def __init__(self, cohort: Cohort, *, room_bytes: int = 1 << 30) -> None:
        self._cohort = cohort
        self._room_bytes = room_bytes
        self.saved: list[Saved] = []
        self.rooms: list[Room] = []
        self.lent = 0
        self.is_held = True

    def saving(self, boundary: int, stored: int = 0, extent_blocks: int = 2) -> Saving:
        """Make a request's wish to be saved here."""
        return Saving(
            stage=self._stage,
            boundary=boundary,
            extent_blocks=extent_blocks,
            pauses=bool(stateful(self._cohort.layers)),
            root=ROOT,
            account=Account(stored=stored),
        )

    @property
    def states(self) -> list[int]:
        """At which boundaries there are states."""
        return sorted(saved.span.stop for saved in self.saved if saved.span.kind == "state")

    def lend(self, tokens: int) -> Restore:
        """Lend the first ``tokens`` tokens of what was saved last."""
        saved = next(one for one in reversed(self.saved) if one.span.stop >= tokens)
        ids = array("I", saved.token_ids_le)[:tokens]
        restore = self.find([*ids, 0])
        assert restore is not None
        assert restore.tokens == tokens
        return restore

    def find(self, prompt: Sequence[int]) -> Restore | None:
        """Lend the longest prefix of a prompt that a row can start from; None without any."""
        catalogue, memory = Catalogue(), dict[str, memoryview]()
        for number, saved in enumerate(self.saved):
            entry = Entry(self._stored(str(number), saved))
            catalogue.add(entry)
            memory[entry.id] = saved.staged.view
        ids = array("I", prompt).tobytes()
        found = matching.find(catalogue, self._groups, Query(ROOT, keys.chain(ROOT, ids), ids))
        if not found.boundaries:
            return None
        parts: list[StoredPart] = []
        state: StoredState | None = None
        for use in found.boundaries[0].uses:
            stored, view = use.entry.object, memory[use.entry.id]
            if stored.kind == "state":
                state = StoredState(stored.first_token + stored.tokens, view[: _size(stored)])
            else:
                parts += _parts(use, view)
        self.lent += 1

        def release() -> None:
            self.lent -= 1

        return Restore(tuple(parts), lambda: self.is_held, release, state)

    @property
    def _groups(self) -> list[Group]:
        layers = self._cohort.layers
        return [*([KV] if sliceable(layers) else []), *([STATE] if stateful(layers) else [])]

    def _stage(self, size: int) -> Room | None:
        if size > self._room_bytes:
            return None
        self._room_bytes -= size
        self.rooms.append(Room(memoryview(bytearray(size))))
        return self.rooms[-1]

    def _stored(self, name: str, saved: Saved) -> StoredObject:
        span, layers = saved.span, self._cohort.layers
        before = saved.token_ids_le[: span.first * 4]
        chains = keys.chain(ROOT, before)
        is_state = span.kind == "state"
        snapshot = Snapshot(
            root=ROOT,
            kind=span.kind,
            group=(STATE if is_state else KV).name,
            parent=chains[-keys.HASH_BYTES :] or ROOT,
            first_token=span.first,
            token_ids_le=saved.token_ids_le[len(before) :],
            part_bytes=part_bytes(stateful(layers), span.stop)
            if is_state
            else part_bytes(sliceable(layers), span.parts[0]),
            header=b"",
        )
        assert snapshot.tokens == sum(span.parts)
        return StoredObject(
            id=name,
            root=ROOT,
            kind=span.kind,
            group=snapshot.group,
            parent=snapshot.parent,
            first_token=span.first,
            token_ids_le=snapshot.token_ids_le,
            parts=tuple(
                Part(
                    chain=snapshot.chains[keys.HASH_BYTES * at : keys.HASH_BYTES * (at + 1)],
                    tokens=tokens,
                    nbytes=snapshot.part_bytes,
                    checksum=b"",
                )
                for at, tokens in enumerate(span.parts)
            ),
            header=b"",
        )


def _size(stored: StoredObject) -> int:
    return stored.parts[0].nbytes


def _parts(use: Use, view: memoryview) -> list[StoredPart]:
    stored = use.entry.object
    parts: list[StoredPart] = []
    for at, part in enumerate(stored.parts):
        used, start = use.tokens - at * BLOCK, at * padded(_size(stored))
        if used > 0:
            first, memory = stored.first_token + at * BLOCK, view[start : start + _size(stored)]
            parts.append(StoredPart(first, min(used, part.tokens), part.tokens, memory))
    return parts
