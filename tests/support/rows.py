"""A batch of rows over one layer's state, beside a plain model of what it should hold."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bramley.worker.cache.contract import LayerState
from bramley.worker.cache.full import FullState
from bramley.worker.cache.table import RowTable

HEADS, SIZE = 2, 4

# Every kind of state that obeys the contract; a new kind is added here and nowhere else.
KINDS: dict[str, Callable[[RowTable], FullState]] = {"full": FullState}

Tokens = NDArray[np.float32]  # (tokens, HEADS, SIZE), keys; values are keys + 0.5


def tokens(first: int, count: int) -> Tokens:
    """Make recognisable content: token t is filled with numbers around t."""
    grid = np.arange(count * HEADS * SIZE, dtype=np.float32).reshape(count, HEADS, SIZE)
    return (grid / 1000 + first).astype(np.float32)


class Rows:
    """State and table of one batch, driven as the engine drives them."""

    def __init__(self, kind: str) -> None:
        self.table = RowTable()
        self.state = KINDS[kind](self.table)

    def join(self) -> None:
        """Add an empty row at the end."""
        self.table.lengths.append(0)

    def leave(self, row: int) -> None:
        """Remove a row; the last takes its place."""
        last = len(self.table.lengths) - 1
        if row != last:
            self.state.move_row(last, row)
            self.table.lengths[row] = self.table.lengths[last]
        self.state.clear_row(last)
        self.table.lengths.pop()

    def rollback(self, row: int, count: int) -> None:
        """Forget a row's last tokens."""
        self.state.rollback(row, count)
        self.table.lengths[row] -= count

    def append(
        self, content: Sequence[Tokens], *, first: int = 0, junk: float = 0.0
    ) -> tuple[mx.array, mx.array]:
        """Append to the rows from ``first`` on, padded with ``junk`` to the longest."""
        width = max(1, *(len(part) for part in content))
        padded = np.full((len(content), width, HEADS, SIZE), junk, np.float32)
        for row, part in enumerate(content):
            padded[row, : len(part)] = part
        keys = mx.array(padded.transpose(0, 2, 1, 3))
        rows = range(first, first + len(content))
        self.table.begin(rows, width, [len(part) for part in content])
        fetched = self.state.update_and_fetch(keys, keys + 0.5)
        mx.eval(fetched, self.state.arrays())
        self.table.commit()
        return fetched

    def export(self, row: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Copy a row's tokens out as bytes."""
        target = np.zeros(self.state.export_bytes(stop - start), np.uint8)
        self.state.export_row(row, start, stop, target)
        return target

    def read(self, row: int) -> Tokens:
        """Return a row's tokens, from an export of all of it."""
        length = self.table.lengths[row]
        if length == 0:
            return np.zeros((0, HEADS, SIZE), np.float32)
        exported = self.export(row, 0, length).view(np.float32)
        keys, values = exported.reshape(2, HEADS, length, SIZE).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(values, keys + np.float32(0.5))
        return keys


def contract(state: LayerState) -> LayerState:
    """Type-check that a kind satisfies the protocol."""
    return state
