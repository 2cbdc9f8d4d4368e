"""Full attention: keys and values of every token, (rows, Hkv, capacity, D) each."""

from collections.abc import Iterator
from typing import Any, cast

import mlx.core as mx
import numpy as np

from bramley.worker.cache.contract import Bytes
from bramley.worker.cache.table import RowTable

COLUMNS_STEP = 256


class FullState:
    """One layer's keys and values. Model files see mlx-lm's cache interface.

    Nobody may keep ``keys`` or ``values``, or a view of them, across a step: a live alias
    makes the next write copy everything. They are plain attributes because some model
    files assign them.
    """

    kind = "full"

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._shapes: tuple[tuple[int, int, mx.Dtype], ...] = ()
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    # What model files call.

    @property
    def offset(self) -> int | mx.array:
        """Position of the forward's first token, one for all rows or (B,)."""
        return self._table.offset

    def make_mask(
        self, columns: int, *, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask as attention takes it: an array, "causal", or None for none needed."""
        table = self._table
        if window_size is not None and table.width <= window_size:
            window_size = None
        if window_size is None and table.uniform is not None and not return_array:
            return None if columns == 1 else "causal"
        return table.mask(window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (B, Hkv, L, D) and return what the forward may read, (B, Hkv, width, D)."""
        if not self._shapes:
            self._shapes = tuple((a.shape[1], a.shape[3], a.dtype) for a in (keys, values))
        self.reserve(len(self._table.lengths), self._table.width)
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._write(self.keys, keys)
        self.values = self._write(self.values, values)
        rows, width = self._table.rows, self._table.width
        return self.keys[rows, :, :width], self.values[rows, :, :width]

    # The contract.

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, spare room included."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Keys and values, once there are any."""
        return [array for array in (self.keys, self.values) if array is not None]

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for ``rows`` x ``columns``, once a forward has told the shapes."""
        if not self._shapes:
            return
        if self.keys is None or self.values is None:
            shape = (rows, _stepped(columns))
            self.keys, self.values = (_room(like, *shape) for like in self._shapes)
            return
        held_rows, _, held_columns, _ = self.keys.shape
        if rows <= held_rows and columns <= held_columns:
            return
        # Doubled, so that growing costs a constant share; evaluated, so that one layer at
        # a time holds both the old and the new. More rows leave spare columns behind, or one
        # long row would make every row long.
        if rows > held_rows:
            new_rows = max(rows, 2 * held_rows)
            new_columns = _stepped(max([columns, *self._table.lengths]))
        else:
            new_rows = held_rows
            new_columns = max(_stepped(columns), 2 * held_columns)
        kept = min(held_columns, new_columns)
        grown: list[mx.array] = []
        for like, held in zip(self._shapes, (self.keys, self.values), strict=True):
            room = _room(like, new_rows, new_columns)
            room[:held_rows, :, :kept] = held[:, :, :kept]
            grown.append(room)
        self.keys, self.values = grown
        mx.eval(grown)

    def reset(self) -> None:
        """Forget every row and free the arrays."""
        self.keys = self.values = None

    def clear_row(self, row: int) -> None:
        """Zero the row's own columns: a masked NaN key is harmless, a masked NaN value is not."""
        self._zero(row, 0, self._table.lengths[row])

    def move_row(self, source: int, target: int) -> None:
        """Copy the source's tokens over the target, and zero what the target had beyond."""
        length, before = self._table.lengths[source], self._table.lengths[target]
        if length:
            copies = [mx.contiguous(array[source, :, :length]) for array in self.arrays()]
            mx.eval(copies)  # or the write would read what it overwrites, and copy everything
            for array, copy in zip(self.arrays(), copies, strict=True):
                array[target, :, :length] = copy
        self._zero(target, length, before)

    def rollback(self, row: int, tokens: int) -> None:
        """Nothing to do: lowering the length is the rollback."""
        assert 0 <= tokens <= self._table.lengths[row]

    @property
    def layout(self) -> str:
        """Heads, size and dtype of keys and of values; heads come before tokens."""
        return f"full {self._shapes}"

    def export_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens."""
        return tokens * sum(heads * size * dtype.size for heads, size, dtype in self._shapes)

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Copy keys, then values, (Hkv, stop - start, D) each."""
        for live, place in self._beside(row, start, stop, target, stop - start):
            np.copyto(place, live)

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Write keys, then values, straight into the live arrays."""
        self.reserve(len(self._table.lengths), stop)
        mx.eval(self.arrays())
        for live, place in self._beside(row, start, stop, source, held):
            np.copyto(live, place)

    def _beside(
        self, row: int, start: int, stop: int, outside: Bytes, held: int
    ) -> Iterator[tuple[Bytes, Bytes]]:
        # Bytes, so that every dtype goes the same way. The arrays are evaluated and nothing
        # pending reads them, so their memory may be read and written where it lies.
        at = 0
        for array in self.arrays():
            memory: Bytes = np.frombuffer(cast("Any", array), np.uint8)  # the stubs miss the buffer
            rows, heads, columns, _ = array.shape
            live = memory.reshape(rows, heads, columns, -1)[row, :, start:stop]
            size = heads * held * live.shape[-1]
            place = outside[at : at + size].reshape(heads, held, -1)[:, : stop - start]
            at += size
            yield live, place

    def _zero(self, row: int, start: int, stop: int) -> None:
        if start < stop:
            for array in self.arrays():
                array[row, :, start:stop] = 0

    def _write(self, held: mx.array, new: mx.array) -> mx.array:
        table = self._table
        start = table.uniform
        if start is not None:
            held[table.rows, :, start : start + table.columns] = new
            return held
        shape = held.shape
        flat = held.reshape(-1, shape[-1])
        flat[table.flat_places(shape[1], shape[2])] = new.reshape(-1, shape[-1])
        return flat.reshape(shape)


def _stepped(columns: int) -> int:
    return -(-columns // COLUMNS_STEP) * COLUMNS_STEP


def _room(like: tuple[int, int, mx.Dtype], rows: int, columns: int) -> mx.array:
    heads, size, dtype = like
    return mx.zeros((rows, heads, columns, size), dtype=dtype)
