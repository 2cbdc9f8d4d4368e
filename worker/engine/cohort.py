"""The rows that run as one batch: which slot has which row, and their layers' state.

Live rows are a prefix of the physical rows. Those that decode come first, so that one forward
takes them all; rows whose prompt is being prefilled and parked rows follow.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import mlx.core as mx

from bramley.worker.cache.contract import CannotRollback, LayerState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import LanguageModel

IDLE_BYTES_MAX = 256 << 20  # of state that an idle engine keeps for the next request


class Cohort:
    """Rows of one batch. Slots are permanent, rows move: never store a row across steps.

    Attributes:
        decoding: how many rows, from the first, decode.
    """

    def __init__(
        self,
        table: RowTable,
        layers: Sequence[LayerState],
        caches: Callable[[], Sequence[object]] | None = None,
    ) -> None:
        """Make a cohort without rows.

        Args:
            table: of the states.
            layers: the states.
            caches: arranges them as the model's file wants them; as they are unless given.
        """
        self.table = table
        self.layers = layers
        self._caches = caches
        self.decoding = 0
        self._slots: list[int] = []

    def __repr__(self) -> str:
        pairs = zip(self._slots, self.table.lengths, strict=True)
        return ", ".join(f"slot {slot}: {length} tokens" for slot, length in pairs) or "empty"

    @property
    def slots(self) -> Sequence[int]:
        """The slot of each row."""
        return self._slots

    @property
    def caches(self) -> Sequence[object]:
        """What the model's file is called with."""
        return self.layers if self._caches is None else self._caches()

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' state, spare room included."""
        return sum(layer.nbytes for layer in self.layers)

    def bytes_for(self, rows: int, columns: int) -> int:
        """Bytes that so many rows of so many tokens take."""
        columns = self.table.stepped(columns)
        return rows * sum(layer.row_bytes(columns) for layer in self.layers)

    def row(self, slot: int) -> int:
        """The row that a slot has now."""
        return self._slots.index(slot)

    def length(self, slot: int) -> int:
        """Tokens that a slot's row holds."""
        return self.table.lengths[self.row(slot)]

    def join(self, slot: int) -> None:
        """Add an empty row at the end."""
        self._slots.append(slot)
        self.table.join()
        for layer in self.layers:
            layer.reserve(len(self._slots), max(1, *self.table.lengths))

    def start_decoding(self, slot: int) -> None:
        """Put a row among those that decode."""
        self._swap(self.row(slot), self.decoding)
        self.decoding += 1

    def stop_decoding(self, slot: int) -> None:
        """Put a row behind those that decode."""
        assert self.row(slot) < self.decoding
        self._swap(self.row(slot), self.decoding - 1)
        self.decoding -= 1

    def line_up(self, slots: Sequence[int]) -> range:
        """Make rows that do not decode neighbours; return their rows, in that order."""
        for place, slot in enumerate(slots, self.decoding):
            self._swap(self.row(slot), place)
        return range(self.decoding, self.decoding + len(slots))

    def leave(self, slot: int) -> None:
        """Remove a row, and fill the hole."""
        # Each part can be done again after one that found no memory.
        hole, last = self.row(slot), len(self._slots) - 1
        if hole < self.decoding:
            self._move(self.decoding - 1, hole)
            self.decoding -= 1
            hole = self.decoding
        self._move(last, hole)
        self._clear(last)
        self._slots.pop()
        self.table.leave_last()

    def empty(self, slot: int) -> None:
        """Make a row as it was when it joined."""
        self._clear(self.row(slot))

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Give an empty row the first ``tokens`` of another.

        Args:
            source: slot of a row that can be cut back that far.
            target: slot of the empty row.
            tokens: that are wanted.
        """
        from_row, to_row = self.row(source), self.row(target)
        for layer in self.layers:
            layer.copy_row(from_row, to_row)
        self.table.copy(from_row, to_row)
        self.cut(target, tokens)

    def cut(self, slot: int, tokens: int) -> None:
        """Forget what a row holds beyond its first ``tokens``.

        Raises:
            CannotRollback: some layer cannot go back that far; nothing changed.
        """
        if not self.can_cut(slot, tokens):
            raise CannotRollback(f"{self!r} cannot go back to {tokens} tokens")
        row = self.row(slot)
        beyond = self.table.lengths[row] - tokens
        for layer in self.layers:
            layer.rollback(row, beyond)
        self.table.rollback(row, beyond)

    def can_cut(self, slot: int, tokens: int) -> bool:
        """Whether every layer can go back to a row's first ``tokens``."""
        row = self.row(slot)
        beyond = self.table.lengths[row] - tokens
        return all(layer.can_rollback(row, beyond) for layer in self.layers)

    @contextmanager
    def forward(
        self,
        model: LanguageModel,
        ids: mx.array,
        rows: range,
        counts: Sequence[int] | None = None,
    ) -> Generator[mx.array]:
        """Run a model over new tokens of neighbouring rows, which have them when the block ends.

        If it raises, every length is as it was (law 12 of the state contract).

        Args:
            model: to be run.
            ids: the tokens, (rows, columns).
            rows: whose they are.
            counts: of each row, where some are padded.

        Yields:
            The logits, not evaluated.
        """
        self.table.begin(rows, ids.shape[1], counts)
        self.prepare()
        yield model(ids, cache=self.caches)
        self.table.commit()

    def prepare(self) -> None:
        """Make room in every layer for the forward that the table describes."""
        for layer in self.layers:
            layer.prepare()

    def bytes_after(self, rows: int, columns: int) -> int:
        """Bytes of all layers' state once it has grown to so many rows and columns."""
        columns = self.table.stepped(columns)
        return sum(layer.bytes_after(rows, columns) for layer in self.layers)

    def fit(self, rows: int = 0, columns: int = 0) -> None:
        """Have room for so many rows of so many columns and for what there is, and no more."""
        columns = self.table.stepped(columns)
        for layer in self.layers:
            layer.fit(rows, columns)

    def reset(self) -> None:
        """Drop every row and free the state, after a forward that failed."""
        while self._slots:
            self._slots.pop()
            self.table.leave_last()
        self.decoding = 0
        self.table.is_torn = False
        for layer in self.layers:
            layer.reset()

    def is_sound(self, slot: int) -> bool:
        """Whether a row holds numbers only: what went wrong below reaches the last layer."""
        row = self.row(slot)
        arrays = self.layers[-1].arrays()
        checks = [mx.all(mx.isfinite(array[row])) for array in arrays if row < array.shape[0]]
        return all(check.item() for check in checks)

    def evaluate(self, *more: mx.array) -> None:
        """Evaluate every layer's state, and ``more``, in one go."""
        mx.eval([array for layer in self.layers for array in layer.arrays()], *more)

    def _clear(self, row: int) -> None:
        for layer in self.layers:
            layer.clear_row(row)
        self.table.clear(row)

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        for layer in self.layers:
            layer.swap_rows(a, b)
            self.table.is_torn = True  # where the next one cannot
        self.table.is_torn = False
        self.table.swap(a, b)
        self._slots[a], self._slots[b] = self._slots[b], self._slots[a]

    def _move(self, source: int, target: int) -> None:
        """Put a row over another that nobody needs, which gets its empty seat."""
        if source == target:
            return
        for layer in self.layers:
            layer.copy_row(source, target)
        self.table.copy(source, target)
        self._clear(source)
        self._slots[target], self._slots[source] = self._slots[source], self._slots[target]
