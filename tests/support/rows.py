"""A batch of rows over the states of some layers, beside a plain model of what it should give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bramley.worker.cache.contract import Bytes, CannotRollback, LayerState
from bramley.worker.cache.full import FullState
from bramley.worker.cache.recurrent import RecurrentState
from bramley.worker.cache.rotating import RotatingState
from bramley.worker.cache.table import RowTable
from support.arrays import floats
from support.blas import BLAS

HEADS, SIZE = 2, 4
WRONG = -1  # a token whose keys and values are NaN

Floats = NDArray[np.float32]
Tokens = Sequence[int]


@dataclass(frozen=True)
class Attention:
    """What one layer should do: a window of 0 is full attention."""

    window: int = 0
    keep: int = 0

    def make(self, table: RowTable) -> LayerState:
        """Make its state."""
        return RotatingState(table, self.window, self.keep) if self.window else FullState(table)

    def forward(self, state: Any, keys: mx.array) -> mx.array:
        """Run the layer on keys, (rows, HEADS, width, SIZE)."""
        mask = state.make_mask(keys.shape[2])
        seen = state.update_and_fetch(keys, keys + 0.5)
        queries = keys[..., ::-1]
        return mx.fast.scaled_dot_product_attention(queries, *seen, scale=1.0, mask=mask)

    def held(self, exported: Bytes, length: int) -> Floats:
        """Keys of the tokens that an export still holds."""
        pair = exported.view(np.float32).reshape(2, HEADS, len(self.needed(length)), SIZE)
        np.testing.assert_array_equal(pair[1], pair[0] + np.float32(0.5))
        return pair[0].swapaxes(0, 1)

    def should_hold(self, tokens: Tokens, index: int) -> Floats:
        """What ``held`` should return of a row of these tokens."""
        return content([tokens[position] for position in self.needed(len(tokens))], index)

    def should_give(self, index: int, tokens: Tokens, last: int) -> Floats:
        """What the last tokens of a row should give, (last, HEADS, SIZE)."""
        return attention(self, index, tokens, last)

    def visible(self, position: int) -> list[int]:
        """Positions that the token at ``position`` sees."""
        if not self.window:
            return list(range(position + 1))
        recent = self.window - self.keep
        return [p for p in range(position + 1) if p > position - recent or p < self.keep]

    def needed(self, length: int) -> list[int]:
        """Positions that a token after so many would see, itself aside."""
        return self.visible(length)[:-1]


@dataclass(frozen=True)
class Recurrent:
    """A layer that halves its sum and adds each token to it, and remembers the last two."""

    def make(self, table: RowTable) -> LayerState:
        """Make its state."""
        return RecurrentState(table, 2)

    def forward(self, state: Any, keys: mx.array) -> mx.array:
        """Run the layer on keys, (rows, HEADS, width, SIZE)."""
        tokens = keys.swapaxes(1, 2)
        rows, width = tokens.shape[:2]
        tail, total = state[0], state[1]
        if tail is None:
            tail, total = mx.zeros((rows, 2, HEADS, SIZE)), mx.zeros((rows, HEADS, SIZE))
        every = mx.concatenate([tail, tokens], axis=1)
        mask, outputs = state.make_mask(width), list[mx.array]()
        for column in range(width):
            new = total / 2 + tokens[:, column]
            total = new if mask is None else mx.where(mask[:, column, None, None], new, total)
            outputs.append(new + every[:, column])
        ends = state.lengths if mask is not None else mx.full((rows,), width)
        places = (ends[:, None] + mx.arange(2))[:, :, None, None]
        state[0] = mx.take_along_axis(every, mx.broadcast_to(places, tail.shape), axis=1)
        state[1] = total
        state.advance(width)
        return mx.stack(outputs, axis=2)

    def held(self, exported: Bytes, length: int) -> Floats:
        """The last two tokens, and the sum."""
        return exported.view(np.float32).reshape(3, HEADS, SIZE)

    def should_hold(self, tokens: Tokens, index: int) -> Floats:
        """What ``held`` should return of a row of these tokens."""
        return np.concatenate([self._tail(tokens, index), self._sums(tokens, index)[-1:]])

    def should_give(self, index: int, tokens: Tokens, last: int) -> Floats:
        """What the last tokens of a row should give, (last, HEADS, SIZE)."""
        before = np.concatenate([np.zeros((2, HEADS, SIZE), np.float32), content(tokens, index)])
        given = self._sums(tokens, index)[1:] + before[:-2]
        return given[len(tokens) - last :]

    def _tail(self, tokens: Tokens, index: int) -> Floats:
        nothing = np.zeros((2, HEADS, SIZE), np.float32)
        return np.concatenate([nothing, content(tokens, index)])[-2:]

    def _sums(self, tokens: Tokens, index: int) -> Floats:
        sums = [np.zeros((HEADS, SIZE), np.float32)]
        for token in content(tokens, index):
            sums.append(sums[-1] / 2 + token)
        return np.array(sums)


FULL, ROTATING, SINKS = Attention(), Attention(window=6), Attention(window=9, keep=3)
RECURRENT = Recurrent()

# Every kind of state that obeys the contract; a new kind is added here and nowhere else.
KINDS: dict[str, tuple[Attention | Recurrent, ...]] = {
    "full": (FULL,),
    "rotating": (ROTATING,),
    "sinks": (SINKS,),
    "recurrent": (RECURRENT,),
    "mixture": (FULL, ROTATING, ROTATING, SINKS, Attention(window=40)),
    "hybrid": (RECURRENT, FULL, RECURRENT, ROTATING),
}
# A forward copies their rows, and only the last one is taken back.
RECURRENT_KINDS = {name for name, specs in KINDS.items() if RECURRENT in specs}


def content(tokens: Tokens, layer: int = 0) -> Floats:
    """Make a layer's keys of tokens, (tokens, HEADS, SIZE); values are keys + 0.5."""
    grid = np.arange(HEADS * SIZE).reshape(HEADS, SIZE)
    numbers = np.asarray(tokens, np.float64).reshape(-1, 1, 1)
    noise = np.modf(np.sin(numbers * 12.9898 + grid * 78.233 + layer) * 43758.5453)[0]
    noise[numbers[:, 0, 0] == WRONG] = np.nan
    return noise.astype(np.float32)


def attention(layer: Attention, index: int, tokens: Tokens, last: int) -> Floats:
    """What the last tokens of a row should give at a layer, (last, HEADS, SIZE)."""
    keys = content(tokens, index)
    out = np.zeros((last, HEADS, SIZE), np.float32)
    for i, position in enumerate(range(len(tokens) - last, len(tokens))):
        seen = keys[layer.visible(position)]
        scores = np.einsum("hd,phd->hp", keys[position, :, ::-1], seen).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[i] = np.einsum("hp,phd->hd", weights, seen + 0.5)
    return out


class Rows:
    """States and table of one batch, driven as the engine drives them."""

    def __init__(self, kind: str, width_step: int = 1) -> None:
        self.table = RowTable(width_step, BLAS.sum_panel)
        self.specs = KINDS[kind]
        self.states = [spec.make(self.table) for spec in self.specs]

    @classmethod
    def of(cls, kind: str, rows: Sequence[Tokens], width_step: int = 1) -> "Rows":
        """Make a batch that holds some rows."""
        made = cls(kind, width_step)
        for _ in rows:
            made.join()
        if any(rows):
            made.append(rows)
        return made

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return self.table.lengths

    @property
    def nbytes(self) -> int:
        """Of all layers."""
        return sum(state.nbytes for state in self.states)

    def arrays(self) -> list[mx.array]:
        """Of all layers."""
        return [array for state in self.states for array in state.arrays()]

    def join(self) -> None:
        """Add an empty row at the end."""
        self.table.join()

    def leave(self, row: int) -> None:
        """Remove a row; the last takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            self.move(last, row)
        self.clear(last)
        self.table.leave_last()

    def clear(self, row: int) -> None:
        """Empty a row."""
        for state in self.states:
            state.clear_row(row)
        self.table.clear(row)

    def move(self, source: int, target: int) -> None:
        """Put a row in another's place."""
        self.copy(source, target)
        self.clear(source)

    def copy(self, source: int, target: int) -> None:
        """Copy a row over another."""
        for state in self.states:
            state.copy_row(source, target)
        self.table.copy(source, target)

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        for state in self.states:
            state.swap_rows(a, b)
        self.table.swap(a, b)

    def rollback(self, row: int, count: int) -> None:
        """Forget a row's last tokens."""
        if not all(state.can_rollback(row, count) for state in self.states):
            raise CannotRollback
        for state in self.states:
            state.rollback(row, count)
        self.table.rollback(row, count)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room."""
        for state in self.states:
            state.reserve(rows, columns)

    def fit(self, rows: int, columns: int) -> None:
        """Give room back."""
        for state in self.states:
            state.fit(rows, columns)

    def append(
        self, rows: Sequence[Tokens], *, first: int = 0, junk: float = 0.0, commit: bool = True
    ) -> list[list[Floats]]:
        """Append to the rows from ``first`` on, padded with ``junk`` to the longest.

        Returns:
            What the tokens give, (tokens, HEADS, SIZE), of each layer and row.
        """
        width = max(1, *map(len, rows))
        self.table.begin(range(first, first + len(rows)), width, list(map(len, rows)))
        for state in self.states:
            state.prepare()
        outputs = [self._attend(index, rows, width, junk) for index in range(len(self.states))]
        if commit:
            self.table.commit()
        mx.eval(outputs, self.arrays())
        return [
            [floats(output[row, :, : len(part)]).swapaxes(0, 1) for row, part in enumerate(rows)]
            for output in outputs
        ]

    def _attend(self, index: int, rows: Sequence[Tokens], width: int, junk: float) -> mx.array:
        padded = np.full((len(rows), width, HEADS, SIZE), junk, np.float32)
        for row, part in enumerate(rows):
            padded[row, : len(part)] = content(part, index)
        keys = mx.array(padded.transpose(0, 2, 1, 3))
        return self.specs[index].forward(self.states[index], keys)

    def export(self, row: int, stop: int) -> list[NDArray[np.uint8]]:
        """Copy a row's state at ``stop`` out, of each layer."""
        targets = [np.zeros(state.export_bytes(stop), np.uint8) for state in self.states]
        for state, target in zip(self.states, targets, strict=True):
            state.export_row(row, 0, stop, target)
        return targets

    def import_(self, row: int, stop: int, exported: Sequence[NDArray[np.uint8]]) -> None:
        """Make a row equal an export."""
        for state, source in zip(self.states, exported, strict=True):
            state.import_row(row, 0, stop, source, stop)
        self.table.imported(row, stop)

    def read(self, row: int, stop: int | None = None) -> list[Floats]:
        """Return what each layer holds of a row."""
        length = self.lengths[row] if stop is None else stop
        if length == 0:
            return [content([]) for _ in self.states]
        exports = zip(self.specs, self.export(row, length), strict=True)
        return [spec.held(exported, length) for spec, exported in exports]

    def expected(self, tokens: Tokens) -> list[Floats]:
        """Return what ``read`` should, for a row of these tokens."""
        if not tokens:
            return [content([]) for _ in self.states]
        return [spec.should_hold(tokens, index) for index, spec in enumerate(self.specs)]

    def holds(self, row: int, tokens: Tokens) -> None:
        """Check that a row is of these tokens, bit for bit."""
        assert self.lengths[row] == len(tokens)
        for found, expected in zip(self.read(row), self.expected(tokens), strict=True):
            np.testing.assert_array_equal(found, expected)

    def gives(self, outputs: list[list[Floats]], row: int, tokens: Tokens) -> None:
        """Check what the last append gave at a row, which is of these tokens with it."""
        for index, spec in enumerate(self.specs):
            given = outputs[index][row]
            expected = spec.should_give(index, tokens, len(given))
            np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def same(some: list[list[Floats]], others: list[list[Floats]]) -> None:
    """Check that two appends gave the same bits."""
    for a, b in zip(some, others, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def contract(state: LayerState) -> LayerState:
    """Type-check that a kind satisfies the protocol."""
    return state
