"""Keys and values of all rows, (rows, Hkv, columns, D) each: room, writes, whole rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from bramley.worker.cache.contract import Bytes
from bramley.worker.cache.room import grown_room, stepped
from bramley.worker.cache.table import RowTable, Seats, agreed


class KeysAndValues(ABC):
    """The two arrays of one layer, and what kinds that consist of them have in common.

    A kind says how many columns a row has by ``_held``, and by ``_used`` which columns of a
    seat may hold something. Nobody may keep ``keys`` or ``values``, or a view of them, across
    a step: a live alias makes the next write copy everything. They are plain attributes
    because some model files assign them.
    """

    def __init__(self, table: RowTable, used: Seats) -> None:
        self._table = table
        self._used = used
        self._shapes: tuple[tuple[int, int, mx.Dtype], ...] = ()
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Position of the forward's first token, one for all rows or (B,)."""
        return self._table.offset

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, spare room included."""
        return sum(array.nbytes for array in self.arrays())

    def resemble(self, other: object) -> None:
        """Take the shapes of keys and of values over, if they are known there."""
        assert isinstance(other, KeysAndValues)
        self._shapes = self._shapes or other._shapes

    def arrays(self) -> list[mx.array]:
        """Keys and values, once there are any."""
        return self._buffers()

    def adopt(self, arrays: Sequence[mx.array]) -> None:
        """Hold these from now on."""
        self.keys, self.values = arrays

    def reset(self) -> None:
        """Forget every row and free the arrays."""
        self.keys = self.values = None

    def clear_row(self, row: int) -> None:
        """Zero the seat: a masked NaN key is harmless, a masked NaN value is not."""
        self._zero(row, 0, self._used[row])

    def copy_row(self, source: int, target: int) -> None:
        """Copy the source's tokens over the target."""
        held = self._held(source)
        self._replace({target: self._copies(source, 0, held)})

    def swap_rows(self, a: int, b: int) -> None:
        """Exchange the tokens of two rows."""
        copies = self._copies(a, 0, self._held(a)), self._copies(b, 0, self._held(b))
        self._replace({b: copies[0], a: copies[1]})

    # For the kinds.

    def _buffers(self) -> list[mx.array]:
        return [array for array in (self.keys, self.values) if array is not None]

    @abstractmethod
    def _held(self, row: int) -> int:
        """Columns that a row has."""

    _columns_max = 1 << 62  # that a row takes

    @property
    def _token_bytes(self) -> int:
        return sum(heads * size * dtype.size for heads, size, dtype in self._shapes)

    def _learn(self, keys: mx.array, values: mx.array) -> None:
        if not self._shapes:
            self._shapes = tuple((a.shape[1], a.shape[3], a.dtype) for a in (keys, values))

    @property
    def _has_room(self) -> bool:
        """Whether the open forward's new tokens fit."""
        if self.keys is None:
            return False
        shape = self.keys.shape
        return self._table.rows.stop <= shape[0] and self._table.width <= shape[2]

    def _make_room(self, rows: int, columns: int) -> None:
        grown = self._grown(rows, columns)
        if grown is not None:
            self._resize(*grown)

    def _grown(self, rows: int, columns: int) -> tuple[int, int] | None:
        """The room to make for so many rows and columns; None where there is enough."""
        if not self._shapes:
            return None
        if self.keys is None:
            return rows, self._stepped(columns)
        held = self._room
        if rows <= held[0] and columns <= held[1]:
            return None
        if rows > held[0]:
            columns = max(columns, self._longest)
        rows, columns = grown_room(held, (rows, columns))
        return rows, self._stepped(columns)

    def bytes_after(self, rows: int, columns: int) -> int:
        """Return what it will take when ``reserve`` has made room for so much."""
        grown = self._grown(rows, min(columns, self._columns_max))
        return self.nbytes if grown is None else grown[0] * grown[1] * self._token_bytes

    def fit(self, rows: int, columns: int) -> None:
        """Have room for ``rows`` of ``columns`` tokens and for what there is, and no more."""
        if not self._shapes:
            return
        rows = max(rows, len(self._table.lengths))
        columns = self._stepped(max(columns, self._longest))
        if rows == 0 or columns == 0:
            self.reset()
        elif self.keys is None or (rows, columns) != self._room:
            self._resize(rows, columns)

    @property
    def _longest(self) -> int:
        return max(map(self._held, range(len(self._table.lengths))), default=0)

    def _stepped(self, columns: int) -> int:
        return stepped(columns, self._columns_max)

    @property
    def _room(self) -> tuple[int, int]:
        assert self.keys is not None
        rows, _, columns, _ = self.keys.shape
        return rows, columns

    def _resize(self, rows: int, columns: int) -> None:
        resized: list[mx.array] = []
        held = self._buffers()
        for i, (heads, size, dtype) in enumerate(self._shapes):
            if held and rows <= self._room[0] and columns <= self._room[1]:
                # A gather: a slice would keep all of the former memory.
                resized.append(mx.take(held[i][:, :, :columns], mx.arange(rows), axis=0))
                continue
            room = mx.zeros((rows, heads, columns, size), dtype=dtype)
            if held:
                kept_rows, kept = min(rows, self._room[0]), min(columns, self._room[1])
                room[:kept_rows, :, :kept] = held[i][:kept_rows, :, :kept]
            resized.append(room)
        self.keys, self.values = resized
        mx.eval(resized)  # so that one layer at a time holds both the old and the new

    def _write(self, new: Sequence[mx.array], starts: Sequence[int]) -> None:
        """Write (B, Hkv, L, D) each, at a column of its own for each of the forward's rows."""
        self.keys, self.values = (
            self._written(held, fresh, starts)
            for held, fresh in zip(self._buffers(), new, strict=True)
        )

    def _written(self, held: mx.array, new: mx.array, starts: Sequence[int]) -> mx.array:
        table = self._table
        start = None if table.keeps_graph else agreed(starts)
        if start is not None:
            return _with(held, table.rows, start, start + table.columns, new)
        shape = held.shape
        if table.count == shape[0]:  # every row: one operation less
            return mx.put_along_axis(held, table.places(starts, new.shape), new, axis=2)
        flat = held.reshape(-1, shape[-1])
        places = table.flat_places(starts, shape[1], shape[2])
        flat[places] = new.reshape(-1, shape[-1])
        return flat.reshape(shape)

    def _read(self, start: int, stop: int) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        rows = self._table.rows
        return self.keys[rows, :, start:stop], self.values[rows, :, start:stop]

    def _copies(self, row: int, start: int, stop: int) -> list[mx.array]:
        if start >= stop:
            return []
        copies = [mx.contiguous(array[row, :, start:stop]) for array in self._buffers()]
        mx.eval(copies)  # or the write would read what it overwrites, and copy everything
        return copies

    def _paste(self, row: int, start: int, pieces: Sequence[mx.array]) -> None:
        if pieces:
            seat = slice(row, row + 1)
            self.keys, self.values = (
                _with(array, seat, start, start + piece.shape[-2], piece[None])
                for array, piece in zip(self._buffers(), pieces, strict=True)
            )

    def _replace(self, copies: dict[int, list[mx.array]]) -> None:
        self._make_room(len(self._table.lengths), self._longest)  # a row that just joined has none
        for row, pieces in copies.items():
            self._paste(row, 0, pieces)
            self._zero(row, pieces[0].shape[-2] if pieces else 0, self._used[row])

    def _zero(self, row: int, start: int, stop: int) -> None:
        if self.keys is None:
            return
        rows, columns = self._room
        stop = min(stop, columns)
        if row < rows and start < stop:
            nothing = [
                mx.zeros((heads, stop - start, size), dtype=dtype)
                for heads, size, dtype in self._shapes
            ]
            self._paste(row, start, nothing)

    def _memory(self, row: int, outside: Bytes, held: int) -> Iterator[tuple[Bytes, Bytes]]:
        """Walk the arrays: a row as (Hkv, columns, bytes), and ``outside`` as (Hkv, held, bytes).

        Bytes, so that every dtype goes the same way. The arrays are evaluated and nothing
        pending reads them, so their memory may be read and written where it lies.

        Yields:
            Both, for keys and then for values.
        """
        at = 0
        for array in self._buffers():
            memory: Bytes = np.frombuffer(cast("Any", array), np.uint8)  # the stubs miss the buffer
            rows, heads, columns, _ = array.shape
            live = memory.reshape(rows, heads, columns, -1)[row]
            size = heads * held * live.shape[-1]
            yield live, outside[at : at + size].reshape(heads, held, -1)
            at += size


def _with(held: mx.array, rows: slice, start: int, stop: int, new: mx.array) -> mx.array:
    # A write that covers everything would make ``new`` the array, as odd as it lies in memory.
    if start == 0 and held.shape == new.shape:
        return mx.contiguous(new)
    held[rows, :, start:stop] = new
    return held
