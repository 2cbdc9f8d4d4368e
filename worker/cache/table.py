"""The rows of one batch: how long each is, and what follows from that for one forward.

Rows are left-aligned: row r holds tokens 0..lengths[r]-1 in columns 0..lengths[r]-1.
Positions, masks, write places and rollback all follow from the lengths, which are host
integers. Every layer's state reads this one table; none advances by itself.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx


class RowTable:
    """Lengths of all rows, and the window that the current forward works on.

    Between ``begin`` and ``commit`` the properties describe one forward of ``columns``
    tokens over the rows ``first .. first + count - 1``.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.first = 0
        self.count = 0
        self.columns = 0
        self._valid: list[int] = []
        self._memo: dict[object, mx.array] = {}

    def begin(self, rows: range, columns: int, valid: Sequence[int] | None = None) -> None:
        """Open a forward of ``columns`` tokens over ``rows``.

        Args:
            rows: adjacent rows.
            columns: tokens a row, padding included.
            valid: how many of the columns count, for each row; all of them if None.
        """
        assert rows.step == 1
        assert 0 <= rows.start < rows.stop <= len(self.lengths)
        self.first, self.count, self.columns = rows.start, len(rows), columns
        self._valid = list(valid) if valid is not None else [columns] * self.count
        assert len(self._valid) == self.count
        assert all(0 <= n <= columns for n in self._valid)
        self._memo.clear()

    def commit(self) -> None:
        """Count the forward's valid tokens as written."""
        for row, written in enumerate(self._valid, self.first):
            self.lengths[row] += written
        self._memo.clear()

    @property
    def rows(self) -> slice:
        """The forward's rows, as an index of the batch axis."""
        return slice(self.first, self.first + self.count)

    @property
    def starts(self) -> list[int]:
        """Length of each of the forward's rows before it."""
        return self.lengths[self.first : self.first + self.count]

    @property
    def uniform(self) -> int | None:
        """The length of all rows of the forward if they agree, else None."""
        starts = self.starts
        return starts[0] if min(starts) == max(starts) else None

    @property
    def width(self) -> int:
        """Columns that the forward reads: the longest row, its new tokens included."""
        return max(self.starts) + self.columns

    @property
    def offset(self) -> int | mx.array:
        """Position of the first new token: one integer where all agree, else (B,)."""
        uniform = self.uniform
        if uniform is not None:
            return uniform
        return self._remember("offset", lambda: mx.array(self.starts))

    def flat_places(self, heads: int, capacity: int) -> mx.array:
        """Where new tokens go in a (rows * heads * capacity, D) view, as (B * H * L,)."""

        def places() -> mx.array:
            rows = mx.arange(self.first, self.first + self.count)[:, None, None]
            columns = mx.array(self.starts)[:, None, None] + mx.arange(self.columns)
            return ((rows * heads + mx.arange(heads)[:, None]) * capacity + columns).reshape(-1)

        return self._remember(("places", heads, capacity), places)

    def mask(self, window: int | None = None) -> mx.array:
        """Say which columns each new token may see.

        A token sees itself and what stands before it in its own row, so no query is ever
        without a key, and what lies beyond a row's length is never read.

        Returns:
            Booleans, (B, 1, L, width), shared by all layers with this ``window``.
        """

        def build() -> mx.array:
            queries = mx.array(self.starts)[:, None, None, None]
            queries = queries + mx.arange(self.columns)[:, None]
            keys = mx.arange(self.width)
            seen = keys <= queries
            if window is not None:
                seen = seen & (keys > queries - window)
            return seen

        return self._remember(("mask", window), build)

    def _remember(self, key: object, build: Callable[[], mx.array]) -> mx.array:
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = build()
        return found
