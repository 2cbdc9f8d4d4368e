"""A model's own caches, as they are, for one row: the last resort for what is served by no kind."""

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from bramley.worker.cache.contract import Bytes, CannotExport, CannotRollback
from bramley.worker.cache.table import RowTable


class OpaqueState:
    """All layers' caches of a batch of one row. What they hold can only be begun anew."""

    kind = "opaque"
    is_sliceable = False
    can_keep_graph = False
    layout = "opaque"

    def __init__(self, table: RowTable, make: Callable[[], Sequence[object]]) -> None:
        """Make the caches.

        Args:
            table: of the batch, which never has a second row.
            make: makes all of them, empty.
        """
        self._table = table
        self._make = make
        self._fed = 0
        self.caches = make()

    @property
    def nbytes(self) -> int:
        """Bytes of every array that the caches hold."""
        return sum(array.nbytes for array in self.arrays())

    def resemble(self, other: object) -> None:
        """Nothing is known of their shapes."""

    def arrays(self) -> list[mx.array]:
        """Whatever arrays they hold."""
        return list(_arrays(self.caches))

    def adopt(self, arrays: Sequence[mx.array]) -> None:
        """Not called: no graph is kept."""
        raise AssertionError

    def reserve(self, rows: int, columns: int) -> None:
        """They grow by themselves."""

    def prepare(self) -> None:
        """Count what the forward will write.

        Raises:
            RuntimeError: a forward before it failed, and what they hold is unknown.
        """
        assert len(self._table.lengths) == 1
        if self._fed != self._table.lengths[0]:
            raise RuntimeError("what the model's own caches hold is unknown after a failed step")
        self._fed += self._table.columns

    def bytes_after(self, rows: int, columns: int) -> int:
        """Unknown: what they take now."""
        return self.nbytes

    def fit(self, rows: int, columns: int) -> None:
        """They keep their room."""

    def row_bytes(self, tokens: int) -> int:
        """Unknown before: what they take now."""
        return self.nbytes

    def reset(self) -> None:
        """Begin anew."""
        self.caches = self._make()
        self._fed = 0

    def clear_row(self, row: int) -> None:
        """Begin anew."""
        self.reset()

    def copy_row(self, source: int, target: int) -> None:
        """Not called: there is one row."""
        raise AssertionError

    def swap_rows(self, a: int, b: int) -> None:
        """Not called: there is one row."""
        raise AssertionError

    def can_rollback(self, row: int, tokens: int) -> bool:
        """Never."""
        return tokens == 0

    def rollback(self, row: int, tokens: int) -> None:
        """Refuse."""
        if tokens:
            raise CannotRollback("a model's own caches are not cut back")

    def export_bytes(self, tokens: int) -> int:
        """Nothing is exported."""
        return 0

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Refuse."""
        raise CannotExport("a model's own caches are not stored")

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Not called: nothing was exported."""
        raise AssertionError


def _arrays(value: object) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _arrays(each)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))  # pyright: ignore[reportUnknownArgumentType]
    elif hasattr(value, "__dict__"):
        yield from _arrays(list(vars(value).values()))
