"""The books of all recurrent layers of a table: which rows can take back the last forward.

A recurrent state has no columns to give up. While a short forward is the last one, the arrays
that it started from are kept; rows that it advanced can go back to those, and so does everything
after a forward that failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from bramley.worker.cache.table import RowTable

UNDO_COLUMNS = 32  # a longer forward is a prompt's, which nobody takes back


class RecurrentLayer(Protocol):
    """What the books ask of each layer."""

    def keep(self) -> None:
        """Keep the arrays as they are, to go back to."""
        ...

    def go_back(self) -> None:
        """Take the kept arrays, all of them, for a forward that failed."""
        ...

    def let_go(self) -> None:
        """Keep no former arrays any more."""
        ...


@dataclass(frozen=True, slots=True)
class Advance:
    """What the last forward did to a row.

    Attributes:
        row: that it was then, in the kept arrays.
        tokens: that it got.
    """

    row: int
    tokens: int


class Recurrence:
    """A follower of the table, one for all of its recurrent layers."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._layers: list[RecurrentLayer] = []
        self._advances: dict[int, Advance] = {}
        self._is_open = False

    @classmethod
    def of(cls, table: RowTable) -> Self:
        """Return the table's, made at the first call."""
        for follower in table.followers:
            if isinstance(follower, cls):
                return follower
        recurrence = cls(table)
        table.followers.append(recurrence)
        return recurrence

    def add(self, layer: RecurrentLayer) -> None:
        """Let a layer take part."""
        self._layers.append(layer)

    def undone_from(self, row: int, tokens: int) -> int | None:
        """Find the row, in the kept arrays, that a row was ``tokens`` ago; None if it is gone."""
        advance = self._advances.get(row)
        return advance.row if advance is not None and advance.tokens == tokens else None

    def settle(self) -> None:
        """Forget a forward that was begun and did not come to its end."""
        if self._is_open:
            self._is_open = False
            for layer in self._layers:
                layer.go_back()

    # The follower of the table.

    def join(self) -> None:
        """An empty row comes."""

    def leave_last(self) -> None:
        """The last row goes."""
        self._advances.pop(len(self._table.lengths) - 1, None)

    def copy(self, source: int, target: int) -> None:
        """A row becomes what another is, and can go back where that can."""
        self._set(target, self._advances.get(source))

    def swap(self, a: int, b: int) -> None:
        """Two rows change seats."""
        before = self._advances.get(a)
        self._set(a, self._advances.get(b))
        self._set(b, before)

    def clear(self, row: int) -> None:
        """A row becomes empty."""
        self._set(row, None)

    def rollback(self, row: int, tokens: int) -> None:
        """A row went back."""
        if tokens:
            self._set(row, None)

    def imported(self, row: int, tokens: int) -> None:
        """An export becomes the row."""
        self._set(row, None)

    def begin(self) -> None:
        """Keep what the forward starts from, which is not what a failed one left."""
        self.settle()
        for layer in self._layers:
            layer.keep()
        self._is_open = True
        self._advances.clear()

    def commit(self, valid: Sequence[int]) -> None:
        """The forward is over; a long one is not taken back."""
        self._is_open = False
        if self._table.columns > UNDO_COLUMNS:
            for layer in self._layers:
                layer.let_go()
            return
        rows = range(self._table.first, self._table.first + self._table.count)
        for row, tokens in zip(rows, valid, strict=True):
            self._set(row, Advance(row, tokens) if tokens else None)

    def _set(self, row: int, advance: Advance | None) -> None:
        if advance is None:
            self._advances.pop(row, None)
        else:
            self._advances[row] = advance
