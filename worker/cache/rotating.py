"""Sliding window attention: keys and values of the last tokens, and of the first few (sinks)."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from bramley.worker.cache.arrays import KeysAndValues
from bramley.worker.cache.contract import Bytes, CannotExport
from bramley.worker.cache.table import RowTable
from bramley.worker.cache.window import Run, Window


class RotatingState(KeysAndValues):
    """One layer's keys and values. Model files see mlx-lm's cache interface.

    What is dropped and what is read is the window's to say, for all its layers.
    """

    kind = "rotating"
    is_sliceable = False
    can_keep_graph = False  # where a window begins is a number of the graph

    def __init__(self, table: RowTable, window: int, keep: int = 0) -> None:
        """Join the table's window.

        Args:
            table: of the batch.
            window: tokens that a query sees at most, itself and the sinks included.
            keep: how many sinks: leading tokens that every query sees.
        """
        self._window = Window.of(table, window, keep)
        super().__init__(table, self._window.used)
        self._window.add(self)
        self._columns_max = self._window.capacity
        self._kept: list[list[mx.array]] = []  # for each run of a long forward
        self._beside: tuple[mx.array, ...] = ()  # what a long forward reads

    # What model files call.

    def make_mask(
        self, columns: int, *, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask as attention takes it: an array, "causal", or None for none needed."""
        return self._window.mask(columns, window_size, as_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (B, Hkv, L, D) and return what the forward may read, (B, Hkv, width, D)."""
        self._learn(keys, values)
        self.prepare()
        reading = self._window.prepare()
        if not reading.beside:
            self._write((keys, values), reading.starts)
            return self.keys_and_values()
        seen: list[mx.array] = []
        for held, new in zip(self._read(reading.start, reading.stop), (keys, values), strict=True):
            pieces = [held, new] if held.shape[2] else [new]
            if reading.padding:
                pieces.append(mx.zeros((*new.shape[:2], reading.padding, new.shape[3]), new.dtype))
            seen.append(mx.concatenate(pieces, axis=2) if len(pieces) > 1 else new)
        self._kept = [
            [
                mx.contiguous(array[run.index, :, run.source : run.source + run.columns])
                for array in seen
            ]
            for run in reading.runs
        ]
        self._beside = tuple(seen)
        return seen[0], seen[1]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return the same again, for a layer that has none of its own."""
        reading = self._window.prepare()
        if reading.beside:
            keys, values = self._beside
            return keys, values
        return self._read(reading.start, reading.stop)

    # The contract.

    def arrays(self) -> list[mx.array]:
        """Keys and values, and in a long forward what will enter them at the commit."""
        return [*super().arrays(), *self.kept()]

    def prepare(self) -> None:
        """Have room for the open forward, rows without room dropping what no token will see."""
        self._make_room(len(self._table.lengths), self._window.prepare().room)

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for ``rows`` of ``columns`` tokens, or of as many as a row ever keeps."""
        self._make_room(rows, min(columns, self._columns_max))

    def can_rollback(self, row: int, tokens: int) -> bool:
        """As long as no token would see what was dropped."""
        return tokens == 0 or self._window.still_has(row, self._table.lengths[row] - tokens)

    def rollback(self, row: int, tokens: int) -> None:
        """Only check: lowering the length is the rollback."""
        self._window.check_rollback(row, tokens)

    def row_bytes(self, tokens: int) -> int:
        """Keys and values of as many tokens as a row ever keeps, at most."""
        return self._stepped(tokens) * self._token_bytes

    @property
    def layout(self) -> str:
        """Window, sinks; heads, size and dtype of keys and of values, heads before tokens."""
        return f"rotating {self._window.size} {self._window.keep} {self._shapes}"

    def export_bytes(self, tokens: int) -> int:
        """Keys and values of the tokens that the next one may see."""
        return self._window.needed(tokens) * self._token_bytes

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Copy keys, then values, (Hkv, needed tokens, D) each: sinks first."""
        window = self._window
        assert start == 0
        assert stop <= self._table.lengths[row]
        if not window.still_has(row, stop):
            raise CannotExport(f"a window of {window.size} has dropped what {stop} tokens saw")
        needed = window.needed(stop)
        sinks = min(window.keep, stop)
        first = stop - window.dropped[row] - (needed - sinks)
        for live, place in self._memory(row, target, needed):
            np.copyto(place[:, :sinks], live[:, :sinks])
            np.copyto(place[:, sinks:], live[:, first : first + needed - sinks])

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Write keys, then values, straight into the live arrays."""
        assert start == 0
        assert stop == held
        needed = self._window.needed(stop)
        self.reserve(len(self._table.lengths), needed)
        mx.eval(self._buffers())
        for live, place in self._memory(row, source, needed):
            np.copyto(live[:, :needed], place)

    # What the window asks.

    def begin(self) -> None:
        """Forget what the forward before left."""
        self._kept, self._beside = [], ()

    def kept(self) -> list[mx.array]:
        """Copies of what stays of the tokens that were read beside the buffers."""
        return [array for pieces in self._kept for array in pieces]

    def drop(self, row: int, start: int, stop: int, held: int) -> None:
        """Copy what follows down, and zero what becomes free."""
        self._paste(row, start, self._copies(row, stop, held))
        self._zero(row, held - (stop - start), self._used[row])

    def keep(self, runs: Sequence[Run]) -> None:
        """Write the copies, evaluated by now, into the buffers."""
        for run, pieces in zip(runs, self._kept, strict=bool(self._kept)):
            self._paste(run.row, run.target, pieces)
        self._kept, self._beside = [], ()

    def _held(self, row: int) -> int:
        return self._window.held(row)
