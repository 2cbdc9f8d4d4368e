"""What the layers of one sliding window share: what each row has dropped, what a forward reads.

A query at position q sees p <= q if p > q - (size - keep), or p < keep. Column c of a row
holds position c for c < keep, else position c + dropped. Columns keep the order of the tokens,
so what a row gives does not depend on the steps in which its tokens came. Rows that run out of
columns drop their oldest tokens by a copy of the others; that happens before a forward, for all
layers of the window at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import mlx.core as mx

from bramley.worker.cache.contract import CannotRollback
from bramley.worker.cache.table import RowTable, Seats, agreed, round_up

ROLLBACK = 32  # tokens that a row may always lose again
SLACK = 256  # columns to grow into before a row is copied down, for windows of 256 to 1024
NEVER = (1 << 31) - 1  # a position that no query sees


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent columns that are to stay of what a long forward reads.

    Attributes:
        index: of the row in the forward.
        row: of the buffers.
        source: first column in what was read.
        target: first column in the buffers.
        columns: how many.
    """

    index: int
    row: int
    source: int
    target: int
    columns: int


class WindowLayer(Protocol):
    """What the window asks of each of its layers."""

    def begin(self) -> None:
        """Forget what an abandoned forward left."""
        ...

    def drop(self, row: int, start: int, stop: int, held: int) -> None:
        """Take the columns [start, stop) out of a row of ``held`` columns."""
        ...

    def kept(self) -> list[mx.array]:
        """Copies of the runs that stay of what a long forward read."""
        ...

    def keep(self, runs: Sequence[Run]) -> None:
        """Write those copies, evaluated, into the buffers."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What a forward reads, the same for all layers of the window.

    Attributes:
        starts: columns that each row of the forward has before it.
        start: first column read of the buffers.
        stop: end of the columns read of the buffers.
        beside: whether the new tokens are read beside the buffers, being more than fit into
            them, and enter them at the commit.
        padding: columns of zeros read after them, then.
        room: columns that the buffers must have.
        cuts: columns that each row drops at the commit.
        runs: what enters the buffers at the commit.
    """

    starts: tuple[int, ...]
    start: int
    stop: int
    room: int
    beside: bool = False
    padding: int = 0
    cuts: tuple[int, ...] = ()
    runs: tuple[Run, ...] = ()


class Window:
    """The books of one (size, keep), beside those of the table.

    Attributes:
        dropped: how many tokens each row has lost, sinks never being among them.
        used: columns of each seat that may hold something.
        capacity: columns that a row takes at most.
        kept: columns that a row has after it dropped some.
    """

    def __init__(self, table: RowTable, size: int, keep: int) -> None:
        assert 0 <= keep < size
        self.size, self.keep = size, keep
        self.kept = size - 1 + ROLLBACK
        slack = max(min(size, SLACK), size // 4)
        self.capacity = round_up(self.kept + slack, table.width_step)
        if table.sum_panel < self.capacity < 2 * table.sum_panel:
            self.capacity = 2 * table.sum_panel  # what a forward of so many columns reads
        self.dropped = [0] * len(table.lengths)
        self.used = Seats()
        self._table = table
        self._layers: list[WindowLayer] = []
        self._reading: Reading | None = None

    @classmethod
    def of(cls, table: RowTable, size: int, keep: int) -> Self:
        """Return the table's window of this size, made at the first call."""
        for follower in table.followers:
            if isinstance(follower, cls) and (follower.size, follower.keep) == (size, keep):
                return follower
        window = cls(table, size, keep)
        table.followers.insert(0, window)  # before those whose commit cannot fail
        return window

    def add(self, layer: WindowLayer) -> None:
        """Let a layer take part."""
        self._layers.append(layer)

    def held(self, row: int) -> int:
        """Columns that a row has."""
        return self._table.lengths[row] - self.dropped[row]

    # The follower of the table.

    def join(self) -> None:
        """An empty row comes."""
        self.dropped.append(0)

    def leave_last(self) -> None:
        """The last row goes."""
        self.dropped.pop()
        self.used.clean(len(self.dropped))

    def copy(self, source: int, target: int) -> None:
        """A row becomes what another is."""
        self.used.clean(target, self.held(source))
        self.dropped[target] = self.dropped[source]

    def swap(self, a: int, b: int) -> None:
        """Two rows change seats."""
        held = self.held(a), self.held(b)
        self.dropped[a], self.dropped[b] = self.dropped[b], self.dropped[a]
        self.used.clean(b, held[0])
        self.used.clean(a, held[1])

    def clear(self, row: int) -> None:
        """A row becomes empty."""
        self.dropped[row] = 0
        self.used.clean(row)

    def rollback(self, row: int, tokens: int) -> None:
        """A row loses its last tokens, as was checked; an empty one has dropped nothing."""
        if tokens == self._table.lengths[row]:
            self.dropped[row] = 0

    def imported(self, row: int, tokens: int) -> None:
        """An export becomes the row."""
        held = self.needed(tokens)
        self.dropped[row] = tokens - held
        self.used.touch(row, held)

    def begin(self) -> None:
        """A forward is open."""
        self._reading = None
        for layer in self._layers:
            layer.begin()

    def commit(self, valid: Sequence[int]) -> None:
        """Take in what was read beside the buffers, all of it or, if that fails, nothing."""
        reading = self._reading
        if reading is None or not reading.beside:
            return
        # Evaluated, so that nothing pending reads the buffers when they are written.
        mx.eval([layer.kept() for layer in self._layers])
        for layer in self._layers:
            layer.keep(reading.runs)
        for row, (held, cut) in enumerate(
            zip(reading.starts, reading.cuts, strict=True), self._table.first
        ):
            self.used.touch(row, held + valid[row - self._table.first] - cut)
            self.dropped[row] += cut

    # For the layers.

    def needed(self, tokens: int) -> int:
        """Columns that the future of a row of so many tokens may see."""
        return min(tokens, self.size - 1)

    def first_needed(self, row: int, tokens: int) -> int:
        """Column of the oldest token, sinks aside, that the row sees once it has so many."""
        return max(self.keep, tokens - (self.size - self.keep) + 1 - self.dropped[row])

    def still_has(self, row: int, tokens: int) -> bool:
        """Whether the row still has what it saw when it had so many tokens."""
        position = tokens - (self.size - self.keep) + 1
        return not self.dropped[row] or not tokens or position >= self.keep + self.dropped[row]

    def check_rollback(self, row: int, tokens: int) -> None:
        """Refuse to go back to where tokens would be seen that are gone."""
        left = self._table.lengths[row] - tokens
        assert 0 <= left <= self._table.lengths[row]
        if tokens and not self.still_has(row, left):
            raise CannotRollback(f"a window of {self.size} has dropped what {left} tokens saw")

    def prepare(self) -> Reading:
        """Make room for the open forward, once, and say what it reads."""
        if self._reading is None:
            table = self._table
            rows = range(table.first, table.first + table.count)
            most = max(min(self.held(row), self.kept) for row in rows) + table.columns
            self._reading = self._within(rows) if most <= self.capacity else self._beside(rows)
        return self._reading

    def _within(self, rows: range) -> Reading:
        # New tokens are written behind the old ones, and read where they are.
        table = self._table
        for row in rows:
            held = self.held(row)
            if held + table.columns > self.capacity:
                self._drop(row, held - self.kept)
            self.used.touch(row, self.held(row) + table.columns)
        starts = tuple(map(self.held, rows))
        start, stop = min(map(self._first_read, rows)), max(starts) + table.columns
        width = table.stepped(stop - start)
        start = min(start, self.capacity - width)
        return Reading(starts, start, start + width, room=start + width)

    def _beside(self, rows: range) -> Reading:
        table = self._table
        starts = tuple(map(self.held, rows))
        after = [held + valid for held, valid in zip(starts, table.valid, strict=True)]
        cuts = tuple(max(0, n - self.kept) if n > self.capacity else 0 for n in after)
        stop = max(starts)
        firsts = [
            min(self._first_read(row), self.keep + cut if cut else stop)
            for row, cut in zip(rows, cuts, strict=True)
        ]
        start = min([stop, *firsts]) if self.keep == 0 else 0
        width = stop - start + table.columns
        return Reading(
            starts,
            start,
            stop,
            room=max(1, *(n - cut for n, cut in zip(after, cuts, strict=True))),
            beside=True,
            padding=table.stepped(width) - width,
            cuts=cuts,
            runs=tuple(
                run for index, cut in enumerate(cuts) for run in self._runs(index, cut, start, stop)
            ),
        )

    def _first_read(self, row: int) -> int:
        if self.keep:
            return 0  # the sinks are read, and what lies between is masked
        return self.first_needed(row, self._table.lengths[row])

    def _drop(self, row: int, cut: int) -> None:
        held = self.held(row)
        for layer in self._layers:
            layer.drop(row, self.keep, self.keep + cut, held)
            self._table.is_torn = True  # where the next one cannot
        self._table.is_torn = False
        self.dropped[row] += cut
        self.used.clean(row, held - cut)

    def _runs(self, index: int, cut: int, start: int, stop: int) -> list[Run]:
        # What a row keeps of the columns read: old ones from ``start`` on, new ones from ``stop``.
        row, count = self._table.first + index, self._table.valid[index]
        length, dropped = self._table.lengths[row], self.dropped[row] + cut
        new, old = stop - start, self.keep + cut
        sinks = min(self.keep, length + count) - length
        first = max(length, self.keep + dropped)  # position of the first new one to stay
        runs = [
            Run(index, row, old - start, self.keep, self.held(row) - old if cut else 0),
            Run(index, row, new, length, sinks),
            Run(index, row, new + first - length, first - dropped, length + count - first),
        ]
        return [run for run in runs if run.columns > 0]

    # Masks.

    def mask(
        self, columns: int, window_size: int | None, *, as_array: bool
    ) -> mx.array | str | None:
        """Return the open forward's mask, for a window that is no wider than this one."""
        reading, recent = self.prepare(), self.size - self.keep
        seen = recent if window_size is None else min(recent, window_size)
        if self._sees_all(reading, seen) and not as_array:
            return None if columns == 1 else "causal"
        key = ("window", self.size, self.keep, seen)
        return self._table.remember(key, lambda: self._mask(reading, seen))

    def _sees_all(self, reading: Reading, seen: int) -> bool:
        table = self._table
        length, held = table.uniform, agreed(reading.starts)
        if length is None or held is None:
            return False
        stop = held + (0 if reading.beside else table.columns)
        if reading.stop != stop or reading.padding:
            return False
        oldest = max(self.keep, reading.start) + length - held
        return oldest > length + table.columns - 1 - seen

    def _mask(self, reading: Reading, seen: int) -> mx.array:
        queries = self._table.queries
        keys = self._positions(reading)[:, None, None, :]
        inside = keys > queries - seen
        if self.keep:
            inside = inside | (keys < self.keep)
        return inside & (keys <= queries)

    def _positions(self, reading: Reading) -> mx.array:
        # Of every column read, (B, width).
        table = self._table
        columns = mx.arange(reading.start, reading.stop)
        dropped = mx.array(self.dropped[table.rows])[:, None]
        held = columns + dropped
        if self.keep:
            held = mx.where(columns < self.keep, columns, held)
        if not reading.beside:
            return held
        held = mx.where(columns < mx.array(reading.starts)[:, None], held, NEVER)
        new = mx.array(table.starts)[:, None] + mx.arange(table.columns)
        padding = mx.full((table.count, reading.padding), NEVER, dtype=new.dtype)
        return mx.concatenate([held, new, padding], axis=1)
