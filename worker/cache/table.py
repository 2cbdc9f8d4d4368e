"""The rows of one batch: how long each is, and what follows from that for one forward.

Rows are left-aligned: row r holds tokens 0..lengths[r]-1 in columns 0..lengths[r]-1.
Positions, masks, write places and rollback all follow from the lengths, which are host
integers. Every layer's state reads this one table; none advances by itself.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx


class Follower(Protocol):
    """What also keeps something of each row: told of every change, before it is made."""

    def join(self) -> None:
        """An empty row comes, at the end."""
        ...

    def leave_last(self) -> None:
        """The last row goes."""
        ...

    def copy(self, source: int, target: int) -> None:
        """A row becomes what another is."""
        ...

    def swap(self, a: int, b: int) -> None:
        """Two rows change seats."""
        ...

    def clear(self, row: int) -> None:
        """A row becomes empty, and its seat is clean."""
        ...

    def rollback(self, row: int, tokens: int) -> None:
        """A row loses its last tokens."""
        ...

    def imported(self, row: int, tokens: int) -> None:
        """An export of so many tokens becomes the row."""
        ...

    def begin(self) -> None:
        """A forward is open, and the one before it is over, committed or not."""
        ...

    def commit(self, valid: Sequence[int]) -> None:
        """The forward's tokens become part of its rows, so many of each."""
        ...


class Seats:
    """How many columns of each seat may hold something: padding and drafts outlive no row."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}

    def __getitem__(self, row: int) -> int:
        """Columns, from the first, beyond which a seat holds zeros."""
        return self._used.get(row, 0)

    def touch(self, row: int, columns: int) -> None:
        """Some of the first ``columns`` may have been written."""
        self._used[row] = max(self[row], columns)

    def clean(self, row: int, columns: int = 0) -> None:
        """What lies beyond ``columns`` was zeroed."""
        self._used[row] = columns


class RowTable:
    """Lengths of all rows, and the window that the current forward works on.

    Between ``begin`` and ``commit`` the attributes from ``rows`` on describe one forward of
    ``columns`` tokens over the rows ``first .. first + count - 1``. The methods that change rows
    keep the books only: each layer's state does its part first, by the method of the same name.

    Attributes:
        lengths: tokens of each row; for reading.
        used: columns of each seat that may hold something.
        followers: what else goes with the rows.
        width_step: a forward of several columns a row reads a multiple of it, where every
            new shape of attention has to be planned.
        graph_step: likewise, in forwards whose graph is kept for the next one.
        sum_panel: of the BLAS: no forward reads a width between it and twice as much, or a row's
            last bits would depend on how long its neighbours are (see models/blas.py).
        keeps_graph: whether the forward's graph must depend on its rows' lengths by one array
            alone, ``firsts``.
        rows: the forward's, as an index of the batch axis.
        starts: length of each of them before it.
        uniform: that length, if it is the same for all and the graph may depend on it.
        longest: length of the longest, its new tokens included.
        is_torn: whether a change of rows stopped halfway, so that nobody knows what they hold.
        width: columns that the forward reads.
    """

    def __init__(self, width_step: int = 1, sum_panel: int = 0, graph_step: int = 1) -> None:
        self.lengths: list[int] = []
        self.used = Seats()
        self.followers: list[Follower] = []
        self.width_step = width_step
        self.graph_step = graph_step
        self.keeps_graph = False
        self.is_torn = False
        self.sum_panel = sum_panel
        self.first = 0
        self.count = 0
        self.columns = 0
        self.rows = slice(0, 0)
        self.starts: list[int] = []
        self.uniform: int | None = None
        self.longest = 0
        self.width = 0
        self._valid: list[int] = []
        self._memo: dict[object, mx.array] = {}

    # Rows.

    def join(self) -> None:
        """Append an empty row."""
        for follower in self.followers:
            follower.join()
        self.lengths.append(0)

    def leave_last(self) -> None:
        """Drop the last row, whose seat is clean."""
        for follower in self.followers:
            follower.leave_last()
        self.lengths.pop()
        self.used.clean(len(self.lengths))

    def copy(self, source: int, target: int) -> None:
        """Make a row what another is."""
        for follower in self.followers:
            follower.copy(source, target)
        self.lengths[target] = self.lengths[source]
        self.used.clean(target, self.lengths[source])

    def swap(self, a: int, b: int) -> None:
        """Let two rows change seats."""
        for follower in self.followers:
            follower.swap(a, b)
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]
        for row in (a, b):
            self.used.clean(row, self.lengths[row])

    def clear(self, row: int) -> None:
        """Make a row empty, whose seat is clean."""
        for follower in self.followers:
            follower.clear(row)
        self.lengths[row] = 0
        self.used.clean(row)

    def rollback(self, row: int, tokens: int) -> None:
        """Take a row's last tokens from it, as every layer's state allowed."""
        assert 0 <= tokens <= self.lengths[row]
        for follower in self.followers:
            follower.rollback(row, tokens)
        self.lengths[row] -= tokens

    def imported(self, row: int, tokens: int) -> None:
        """Count what every layer's state imported as the row's ``tokens``."""
        for follower in self.followers:
            follower.imported(row, tokens)
        self.lengths[row] = tokens
        self.used.touch(row, tokens)

    # The forward.

    def begin(
        self,
        rows: range,
        columns: int,
        valid: Sequence[int] | None = None,
        *,
        keeps_graph: bool = False,
    ) -> None:
        """Open a forward of ``columns`` tokens over ``rows``.

        Args:
            rows: adjacent rows.
            columns: tokens a row, padding included.
            valid: how many of the columns count, for each row; all of them if None.
            keeps_graph: whether the forward's graph will serve other lengths, too.
        """
        assert rows.step == 1
        assert 0 <= rows.start < rows.stop <= len(self.lengths)
        self.first, self.count, self.columns = rows.start, len(rows), columns
        self._valid = list(valid) if valid is not None else [columns] * self.count
        assert len(self._valid) == self.count
        assert all(0 <= n <= columns for n in self._valid)
        self._memo.clear()
        self.rows = slice(rows.start, rows.stop)
        self.starts = self.lengths[self.rows]
        self.keeps_graph = keeps_graph
        self.uniform = None if keeps_graph else agreed(self.starts)
        self.longest = max(self.starts) + columns
        self.width = self.stepped(self.longest)
        for row, start in zip(rows, self.starts, strict=True):
            self.used.touch(row, start + columns)
        for follower in self.followers:
            follower.begin()

    def commit(self) -> None:
        """Count the forward's valid tokens as written.

        Raises:
            RuntimeError: no memory; the forward is as if it had failed, unless ``is_torn``.
        """
        for follower in self.followers:
            follower.commit(self._valid)
            self.is_torn = True  # where the next one cannot
        self.is_torn = False
        for row, written in enumerate(self._valid, self.first):
            self.lengths[row] += written
        self._memo.clear()

    @property
    def valid(self) -> Sequence[int]:
        """How many of the columns count, for each of the forward's rows."""
        return self._valid

    @property
    def offset(self) -> int | mx.array:
        """Position of the first new token: one integer where all agree, else (B,)."""
        if self.uniform is not None:
            return self.uniform
        return self.firsts

    def stepped(self, width: int) -> int:
        """Round a width up as the forward needs it."""
        if self.sum_panel < width < 2 * self.sum_panel:
            return 2 * self.sum_panel
        if self.keeps_graph:
            return round_up(width, self.graph_step)
        return round_up(width, self.width_step) if self.columns > 1 else width

    @property
    def firsts(self) -> mx.array:
        """Position of each row's first new token, (B,)."""
        return self.remember("firsts", lambda: mx.array(self.starts))

    def replace_firsts(self, firsts: mx.array) -> None:
        """Let another array stand for ``firsts``, and for all that was made of them."""
        self._memo = {"firsts": firsts}

    def _columns_of(self, starts: Sequence[int]) -> mx.array:
        return self.firsts if starts is self.starts else mx.array(list(starts))

    def places(self, starts: Sequence[int], shape: tuple[int, ...]) -> mx.array:
        """Say in which column each new number goes.

        Args:
            starts: column of the first new token, for each of the forward's rows.
            shape: of the new tokens, (B, H, L, D).

        Returns:
            Columns, of that shape.
        """

        def build() -> mx.array:
            columns = self._columns_of(starts)[:, None] + mx.arange(self.columns)
            return mx.broadcast_to(columns[:, None, :, None], shape)

        return self.remember(("columns", tuple(starts), shape), build)

    def flat_places(self, starts: Sequence[int], heads: int, capacity: int) -> mx.array:
        """Say where new tokens go in a (rows * heads * capacity, D) view.

        Args:
            starts: column of the first new token, for each of the forward's rows.
            heads: of the array.
            capacity: columns of the array.

        Returns:
            Places, (B * H * L,).
        """

        def places() -> mx.array:
            rows = mx.arange(self.first, self.first + self.count)[:, None, None]
            columns = self._columns_of(starts)[:, None, None] + mx.arange(self.columns)
            return ((rows * heads + mx.arange(heads)[:, None]) * capacity + columns).reshape(-1)

        return self.remember(("places", tuple(starts), heads, capacity), places)

    def mask(self, window: int | None = None) -> mx.array:
        """Say which columns each new token may see.

        A token sees itself and what stands before it in its own row, so no query is ever
        without a key, and what lies beyond a row's length is never read.

        Returns:
            Booleans, (B, 1, L, width), shared by all layers with this ``window``.
        """

        def build() -> mx.array:
            queries = self.queries
            keys = mx.arange(self.width)
            seen = keys <= queries
            if window is not None:
                seen = seen & (keys > queries - window)
            return seen

        return self.remember(("mask", window), build)

    @property
    def queries(self) -> mx.array:
        """Positions of the new tokens, (B, 1, L, 1)."""
        return self.firsts[:, None, None, None] + mx.arange(self.columns)[:, None]

    def remember(self, key: object, build: Callable[[], mx.array]) -> mx.array:
        """Return what was built under ``key`` in this forward, or build it."""
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = build()
        return found


def agreed(numbers: Sequence[int]) -> int | None:
    """Return the number that all are, or None."""
    return numbers[0] if min(numbers) == max(numbers) else None


def round_up(number: int, step: int) -> int:
    """Return the next multiple of ``step``."""
    return -(-number // step) * step
