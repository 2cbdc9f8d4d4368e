"""The rows that run as one batch: which slot has which row, and their layers' state.

Live rows are a prefix of the physical rows. Those that decode come first; a row whose
prompt is being prefilled is the last, so that decoding never computes it.
"""

from collections.abc import Sequence

import mlx.core as mx

from bramley.worker.cache.contract import LayerState
from bramley.worker.cache.table import RowTable

IDLE_BYTES_MAX = 256 << 20  # of state that an idle engine keeps for the next request


class Cohort:
    """Rows of one batch. Slots are permanent, rows move: never store a row across steps."""

    def __init__(self, table: RowTable, layers: Sequence[LayerState]) -> None:
        self.table = table
        self.layers = layers
        self._slots: list[int] = []

    def __repr__(self) -> str:
        pairs = zip(self._slots, self.table.lengths, strict=True)
        return ", ".join(f"slot {slot}: {length} tokens" for slot, length in pairs) or "empty"

    @property
    def slots(self) -> Sequence[int]:
        """The slot of each row."""
        return self._slots

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' state, spare room included."""
        return sum(layer.nbytes for layer in self.layers)

    def row(self, slot: int) -> int:
        """The row that a slot has now."""
        return self._slots.index(slot)

    def join(self, slot: int) -> None:
        """Add an empty row at the end."""
        self._slots.append(slot)
        self.table.lengths.append(0)

    def leave(self, slot: int, *, keep_last: bool) -> None:
        """Remove a row, and fill the hole.

        Args:
            slot: whose row goes.
            keep_last: the last row is being prefilled and must stay behind all that decode.
        """
        hole, last = self.row(slot), len(self._slots) - 1
        if keep_last and hole < last - 1:
            self._move(last - 1, hole)
            hole = last - 1
        if hole < last:
            self._move(last, hole)
        for layer in self.layers:
            layer.clear_row(last)
        self._slots.pop()
        self.table.lengths.pop()

    def reset(self) -> None:
        """Drop every row and free the state, after a forward that failed."""
        self._slots.clear()
        self.table.lengths.clear()
        for layer in self.layers:
            layer.reset()

    def evaluate(self, *more: mx.array) -> None:
        """Evaluate every layer's state, and ``more``, in one go."""
        mx.eval([array for layer in self.layers for array in layer.arrays()], *more)

    def _move(self, source: int, target: int) -> None:
        for layer in self.layers:
            layer.move_row(source, target)
        self._slots[target] = self._slots[source]
        self.table.lengths[target] = self.table.lengths[source]
