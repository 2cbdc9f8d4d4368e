"""A store of one process for engine tests: keeps what is saved, lends what is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from bramley.cachestore.objects import padded
from bramley.worker.cache.saved import Restore, Saving, StoredPart
from bramley.worker.cache.snapshot import part_bytes
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.outputs import Saved


@dataclass(slots=True)
class Room:
    """Memory of one object."""

    view: memoryview

    def release(self) -> None:
        """Nothing to do: nobody waits for it."""


class Shelf:
    """Saved spans, by their first token; later ones replace earlier."""

    def __init__(self, cohort: Cohort, *, room_bytes: int = 1 << 30) -> None:
        self._cohort = cohort
        self._room_bytes = room_bytes
        self.saved: list[Saved] = []
        self.lent = 0
        self.is_held = True

    def saving(self, boundary: int, stored: int = 0, extent_blocks: int = 2) -> Saving:
        """Make a request's wish to be saved here."""
        return Saving(
            stage=self._stage, boundary=boundary, extent_blocks=extent_blocks, stored=stored
        )

    def _stage(self, size: int) -> Room | None:
        if size > self._room_bytes:
            return None
        self._room_bytes -= size
        return Room(memoryview(bytearray(size)))

    def lend(self, tokens: int) -> Restore:
        """Lend the first ``tokens`` tokens, out of extents and then any longer part."""
        parts: list[StoredPart] = []
        for first, held, memory in self._parts():
            have = sum(part.tokens for part in parts)
            if first == have and have < tokens:
                parts.append(StoredPart(first, min(held, tokens - have), held, memory))
        assert sum(part.tokens for part in parts) == tokens
        self.lent += 1

        def release() -> None:
            self.lent -= 1

        return Restore(tuple(parts), lambda: self.is_held, release)

    def _parts(self) -> Sequence[tuple[int, int, memoryview]]:
        found: dict[int, tuple[int, int, memoryview]] = {}
        for saved in self.saved:
            first, at = saved.span.first, 0
            for held in saved.span.parts:
                size = part_bytes(self._cohort.layers, held)
                found[first] = (first, held, saved.staged.view[at : at + size])
                first, at = first + held, at + padded(size)
        return [found[first] for first in sorted(found)]
