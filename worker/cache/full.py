"""Full attention: keys and values of every token, or the latent that they are made of (MLA)."""

import mlx.core as mx
import numpy as np

from bramley.worker.cache.arrays import KeysAndValues
from bramley.worker.cache.contract import Bytes
from bramley.worker.cache.table import RowTable


class FullState(KeysAndValues):
    """One layer's keys and values. Model files see mlx-lm's cache interface."""

    is_sliceable = True
    can_keep_graph = True

    def __init__(
        self, table: RowTable, *, kind: str = "full", has_grouped_scores: bool = False
    ) -> None:
        """Join the table.

        Args:
            table: of the batch.
            kind: "latent" where keys and values are what heads are made of, in one (MLA).
            has_grouped_scores: see LayerCache.
        """
        super().__init__(table, table.used)
        self.kind = kind
        self._has_grouped_scores = has_grouped_scores

    # What model files call.

    def make_mask(
        self, columns: int, *, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask as attention takes it: an array, "causal", or None for none needed."""
        table = self._table
        if window_size is not None and table.width <= window_size:
            window_size = None
        exact = table.uniform is not None and table.width == table.longest
        if window_size is None and exact and not return_array:
            return None if columns == 1 else "causal"
        mask = table.mask(window_size)
        return mask[:, :, None] if self._has_grouped_scores else mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (B, Hkv, L, D) and return what the forward may read, (B, Hkv, width, D)."""
        if not self._has_room:
            self._learn(keys, values)
            self.prepare()
        self._write((keys, values), self._table.starts)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return the same again, for a layer that has none of its own."""
        return self._read(0, self._table.width)

    # The contract.

    def prepare(self) -> None:
        """Have room for the open forward."""
        self.reserve(len(self._table.lengths), self._table.width)

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for ``rows`` x ``columns``, once a forward has told the shapes."""
        self._make_room(rows, columns)

    def can_rollback(self, row: int, tokens: int) -> bool:
        """Always."""
        return True

    def rollback(self, row: int, tokens: int) -> None:
        """Nothing to do: lowering the length is the rollback."""
        assert 0 <= tokens <= self._table.lengths[row]

    def row_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens, and of the columns up to the next step."""
        return self._stepped(tokens) * self._token_bytes

    @property
    def layout(self) -> str:
        """Heads, size and dtype of keys and of values; heads come before tokens."""
        return f"{self.kind} {self._shapes}"

    def export_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens."""
        return tokens * self._token_bytes

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Copy keys, then values, (Hkv, stop - start, D) each."""
        for live, place in self._memory(row, target, stop - start):
            np.copyto(place, live[:, start:stop])

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Write keys, then values, straight into the live arrays."""
        self.reserve(len(self._table.lengths), stop)
        mx.eval(self.arrays())
        for live, place in self._memory(row, source, held):
            np.copyto(live[:, start:stop], place[:, : stop - start])

    def _held(self, row: int) -> int:
        return self._table.lengths[row]
