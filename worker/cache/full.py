"""Full attention: keys and values of every token, (rows, Hkv, capacity, D) each."""

import mlx.core as mx

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
        self.reserve(len(self._table.lengths), self._table.width, like=(keys, values))
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

    def reserve(
        self, rows: int, columns: int, like: tuple[mx.array, mx.array] | None = None
    ) -> None:
        """Have room for ``rows`` x ``columns``; ``like`` gives shape and dtype at first."""
        if self.keys is None or self.values is None:
            if like is not None:
                shape = (rows, _stepped(columns))
                self.keys = _room(like[0], *shape)
                self.values = _room(like[1], *shape)
            return
        held_rows, _, held_columns, _ = self.keys.shape
        if rows <= held_rows and columns <= held_columns:
            return
        # Doubled, so that growing costs a constant share; evaluated, so that one layer at
        # a time holds both the old and the new.
        new_rows = held_rows if rows <= held_rows else max(rows, 2 * held_rows)
        fits = columns <= held_columns
        new_columns = held_columns if fits else max(_stepped(columns), 2 * held_columns)
        self.keys = _grown(self.keys, new_rows, new_columns)
        self.values = _grown(self.values, new_rows, new_columns)
        mx.eval(self.keys, self.values)

    def reset(self) -> None:
        """Forget every row and free the arrays."""
        self.keys = self.values = None

    def clear_row(self, row: int) -> None:
        """Zero the seat: masked keys may hold anything, but a masked NaN value poisons."""
        for array in self.arrays():
            if row < array.shape[0]:
                array[row] = mx.zeros(array.shape[1:], dtype=array.dtype)

    def move_row(self, source: int, target: int) -> None:
        """Copy the source's own tokens over the target."""
        length = self._table.lengths[source]
        if length == 0:
            return
        copies = [mx.contiguous(array[source, :, :length]) for array in self.arrays()]
        mx.eval(copies)  # or the write would read what it overwrites, and copy everything
        for array, copy in zip(self.arrays(), copies, strict=True):
            array[target, :, :length] = copy

    def rollback(self, row: int, tokens: int) -> None:
        """Nothing to do: lowering the length is the rollback."""
        assert 0 <= tokens <= self._table.lengths[row]

    def export_row(self, row: int, start: int, stop: int) -> dict[str, mx.array]:
        """Copy keys and values of tokens [start, stop), each (Hkv, stop - start, D)."""
        assert self.keys is not None
        assert self.values is not None
        copies = {
            "keys": mx.contiguous(self.keys[row, :, start:stop]),
            "values": mx.contiguous(self.values[row, :, start:stop]),
        }
        mx.eval(copies)
        return copies

    def import_row(self, row: int, start: int, arrays: dict[str, mx.array]) -> None:
        """Write keys and values of tokens from ``start`` on."""
        keys, values = arrays["keys"], arrays["values"]
        stop = start + keys.shape[1]
        self.reserve(len(self._table.lengths), stop, like=(keys[None], values[None]))
        assert self.keys is not None
        assert self.values is not None
        self.keys[row, :, start:stop] = keys
        self.values[row, :, start:stop] = values
        mx.eval(self.keys, self.values)

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


def _room(like: mx.array, rows: int, columns: int) -> mx.array:
    _, heads, _, size = like.shape
    return mx.zeros((rows, heads, columns, size), dtype=like.dtype)


def _grown(held: mx.array, rows: int, columns: int) -> mx.array:
    room = _room(held, rows, columns)
    room[: held.shape[0], :, : held.shape[2]] = held
    return room
