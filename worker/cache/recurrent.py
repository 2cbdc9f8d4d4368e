"""Recurrent state: a few arrays of a size that does not depend on how many tokens there were.

State spaces, gated delta rules, RWKV, short convolutions. Model files take the arrays out, and
put others in their place; a row that a forward gives no token must come back as it was.
"""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from bramley.worker.cache.contract import Bytes, CannotExport, CannotRollback
from bramley.worker.cache.recurrence import Recurrence
from bramley.worker.cache.table import RowTable

Shape = tuple[tuple[int, ...], mx.Dtype]  # of one row


class RecurrentState:
    """One layer's arrays, (rows, ...) each. Model files see mlx-lm's ``ArraysCache``."""

    kind = "recurrent"
    is_sliceable = False
    can_keep_graph = True

    def __init__(self, table: RowTable, arrays: int) -> None:
        """Join the table.

        Args:
            table: of the batch.
            arrays: how many the layer keeps.
        """
        self._table = table
        self._books = Recurrence.of(table)
        self._books.add(self)
        self._shapes: list[Shape | None] = [None] * arrays
        self._held: list[mx.array | None] = [None] * arrays
        self._before: list[mx.array | None] | None = None

    # What model files call.

    def __len__(self) -> int:
        """How many arrays."""
        return len(self._held)

    def __getitem__(self, index: int) -> mx.array | None:
        """The forward's rows of an array; None where all of them begin, as some files ask."""
        shape = self._shapes[index]  # an index too high ends an unpacking
        if shape is None or not (any(self._table.starts) or self._table.keeps_graph):
            return None
        held = self._whole(index, shape)
        return held if self._covers(held) else held[self._table.rows]

    def __setitem__(self, index: int, value: mx.array) -> None:
        """Write the forward's rows of an array.

        Raises:
            ValueError: its rows are of another shape than before.
        """
        shape = self._shapes[index]
        if shape is None:
            shape = self._shapes[index] = (value.shape[1:], value.dtype)
        if value.shape[1:] != shape[0]:
            raise ValueError(f"a recurrent state of {shape[0]} became one of {value.shape[1:]}")
        held = self._whole(index, shape)
        if self._table.columns > 1:
            value = mx.contiguous(value)  # a view would keep all that it was cut from
        if self._covers(held):
            self._held[index] = value.astype(held.dtype)
        else:
            self._held[index] = _with(held, self._table.rows, value)

    @property
    def lengths(self) -> mx.array | None:
        """How many of the forward's columns count, (B,); None where all do."""
        table = self._table
        if all(valid == table.columns for valid in table.valid):
            return None
        return table.remember("valid", lambda: mx.array(list(table.valid)))

    def advance(self, columns: int) -> None:
        """Nothing to do: the table counts."""

    def make_mask(self, columns: int) -> mx.array | None:
        """Say which columns count, (B, columns); None where all do."""
        lengths = self.lengths
        return None if lengths is None else mx.arange(columns) < lengths[:, None]

    # The contract.

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, and of those that are kept to go back to."""
        return sum(array.nbytes for array in self.arrays()) + self._kept_bytes

    def resemble(self, other: object) -> None:
        """Take shapes over that are known there."""
        assert isinstance(other, RecurrentState)
        self._shapes = [
            mine or theirs for mine, theirs in zip(self._shapes, other._shapes, strict=True)
        ]

    def arrays(self) -> list[mx.array]:
        """Those that there are."""
        return [array for array in self._held if array is not None]

    def adopt(self, arrays: Sequence[mx.array]) -> None:
        """Hold these in the place of those that there are."""
        fresh = iter(arrays)
        self._held = [None if array is None else next(fresh) for array in self._held]

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for so many rows: zeros, until they are written."""
        rows = max(rows, self._rows)
        for index, shape in enumerate(self._shapes):
            if shape is not None:
                self._room(index, shape, rows)

    def prepare(self) -> None:
        """Have room for the table's rows, and no more: a forward of all rows copies nothing."""
        for index, shape in enumerate(self._shapes):
            if shape is not None:
                self._room(index, shape, len(self._table.lengths))

    def bytes_after(self, rows: int, columns: int) -> int:
        """Bytes of so many rows, or of those that there are if they are more."""
        return max(rows, self._rows) * self.row_bytes(1) + self._kept_bytes

    def fit(self, rows: int, columns: int) -> None:
        """Have room for so many rows and for the table's, and no more."""
        self._books.settle()
        self.let_go()
        for index, shape in enumerate(self._shapes):
            if shape is not None and self._held[index] is not None:
                self._room(index, shape, max(rows, len(self._table.lengths)))

    def row_bytes(self, tokens: int) -> int:
        """Bytes of one row, however many tokens it has."""
        return sum(_bytes(shape) for shape in self._shapes if shape is not None)

    def reset(self) -> None:
        """Forget every row."""
        self._held = [None] * len(self._held)
        self._before = None

    def clear_row(self, row: int) -> None:
        """Make a row as it is before its first token: zeros."""
        self._write(row, [None] * len(self._held))

    def copy_row(self, source: int, target: int) -> None:
        """Copy a row over another."""
        self._write(target, self._rows_of(source))

    def swap_rows(self, a: int, b: int) -> None:
        """Exchange two rows."""
        of_a, of_b = self._rows_of(a), self._rows_of(b)
        self._write(a, of_b)
        self._write(b, of_a)

    def can_rollback(self, row: int, tokens: int) -> bool:
        """Only over what the last forward gave the row, all of it."""
        return tokens == 0 or (
            self._before is not None and self._books.undone_from(row, tokens) is not None
        )

    def rollback(self, row: int, tokens: int) -> None:
        """Take the row from what the last forward started from."""
        if tokens == 0:
            return
        source = self._books.undone_from(row, tokens)
        if self._before is None or source is None:
            raise CannotRollback(f"a recurrent state cannot forget its last {tokens} tokens")
        self._write(row, [_row(array, source) for array in self._before])

    @property
    def layout(self) -> str:
        """Shape and dtype of each array's row."""
        return f"recurrent {self._shapes}"

    def export_bytes(self, tokens: int) -> int:
        """Bytes of a row."""
        return self.row_bytes(tokens)

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Copy the row's arrays, one after the other; only what the row is now is there."""
        assert start == 0
        self._books.settle()
        if stop != self._table.lengths[row]:
            raise CannotExport(f"a recurrent state is no longer what it was at {stop} tokens")
        at = 0
        for index, shape in enumerate(self._shapes):
            if shape is None:
                continue
            whole = self._whole(index, shape)[row : row + 1]
            flat = mx.contiguous(whole).reshape(-1).view(mx.uint8)
            size = _bytes(shape)
            target[at : at + size] = np.asarray(flat)
            at += size

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Make an export the row."""
        assert start == 0
        assert stop == held
        at, parts = 0, list[mx.array | None]()
        for shape in self._shapes:
            if shape is None:
                parts.append(None)
                continue
            size = _bytes(shape)
            parts.append(mx.array(source[at : at + size]).view(shape[1]).reshape(1, *shape[0]))
            at += size
        self._write(row, parts)
        mx.eval(self.arrays())  # the memory that they came from is another's

    # What the books ask.

    def keep(self) -> None:
        """Keep the arrays as they are."""
        self._before = list(self._held)

    def go_back(self) -> None:
        """Take the kept arrays; there is nothing to go back to then."""
        if self._before is not None:
            self._held, self._before = self._before, None

    def let_go(self) -> None:
        """Keep no former arrays."""
        self._before = None

    @property
    def _kept_bytes(self) -> int:
        kept = zip(self._before or (), self._held, strict=False)
        return sum(
            before.nbytes for before, now in kept if before is not None and before is not now
        )

    @property
    def _rows(self) -> int:
        return max((array.shape[0] for array in self.arrays()), default=0)

    def _covers(self, held: mx.array) -> bool:
        return self._table.count == held.shape[0]

    def _whole(self, index: int, shape: Shape) -> mx.array:
        held = self._held[index]
        if held is None or held.shape[0] < len(self._table.lengths):
            return self._room(index, shape, len(self._table.lengths))
        return held

    def _room(self, index: int, shape: Shape, rows: int) -> mx.array:
        held = self._held[index]
        if held is None:
            held = mx.zeros((rows, *shape[0]), shape[1])
        elif held.shape[0] < rows:
            new = mx.zeros((rows - held.shape[0], *shape[0]), shape[1])
            held = mx.concatenate([held, new])
        elif held.shape[0] > rows:
            held = mx.contiguous(held[:rows])
        self._held[index] = held
        return held

    def _rows_of(self, row: int) -> list[mx.array | None]:
        self._books.settle()
        return [_row(array, row) for array in self._held]

    def _write(self, row: int, parts: Sequence[mx.array | None]) -> None:
        self._books.settle()
        if any(part is not None for part in parts):
            self.reserve(len(self._table.lengths), 0)  # a row that just joined has none
        for index, (held, part) in enumerate(zip(self._held, parts, strict=True)):
            if held is None or row >= held.shape[0]:
                continue
            new = mx.zeros_like(held[:1]) if part is None else part
            self._held[index] = _with(held, slice(row, row + 1), new)


def _with(held: mx.array, rows: slice, new: mx.array) -> mx.array:
    fresh = mx.array(held)  # the same memory by another name: what is kept must not change
    fresh[rows] = new
    return fresh


def _row(array: mx.array | None, row: int) -> mx.array | None:
    if array is None or row >= array.shape[0]:
        return None
    return array[row : row + 1]


def _bytes(shape: Shape) -> int:
    return math.prod(shape[0]) * shape[1].size
