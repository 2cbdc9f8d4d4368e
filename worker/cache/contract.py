"""What a layer's state must do, whatever its kind: the laws, and the protocol.

A *state* holds one layer's memory of every row of a batch. Lengths live in the batch's
RowTable alone. The laws, which tests/component/worker/test_state_laws.py checks by number
for every kind:

 1. **Alone or together.** What a row reads back does not depend on its row index, on its
    neighbours or on how many there are.
 2. **Whole or in pieces.** Appending n tokens at once equals appending them in any pieces.
 3. **Padding is never read.** Columns at or beyond a row's length change nothing, whatever
    finite numbers they hold, and padding that a forward writes is not part of the row.
 4. **Joining.** A new row starts at length 0, and nothing of the seat's former row is seen.
 5. **Moving.** ``copy_row`` makes the target row equal the source and leaves the source as
    it was, ``swap_rows`` makes each equal the other, at the cost of the two rows' own lengths
    (of all rows, for a recurrent kind, whose arrays are written whole).
 6. **Leaving.** Removing a row changes no other row, and leaves nothing in its seat, padding
    and rejected drafts included: a row that went wrong (NaN) must not poison the next one,
    and a mask does not hold NaN back.
 7. **Rollback.** After ``rollback(row, n)`` the row is as if its last n tokens had never
    been appended; a kind that cannot do that raises CannotRollback and changes nothing.
 8. **Export.** ``export_row`` copies a row's tokens into the caller's memory and keeps no view
    of live state, so later appends neither change the copy nor cost a copy themselves. A
    kind that is not sliceable exports its state at ``stop`` as a whole, while it still has it.
 9. **Import.** ``import_row`` of an export makes the row equal what was exported, bit for
    bit; appending to it equals appending to the original.
10. **Growth.** ``reserve``, ``prepare`` and ``fit`` keep every row's content.
11. **Bytes.** ``nbytes`` is what the arrays really take, spare room included.
12. **Length.** A row's state is for exactly ``table.lengths[row]`` tokens, also after a
    forward that failed: state beyond it is not part of the row.
"""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class CannotRollback(Exception):
    """This kind has no way back over these tokens; restore a snapshot or prefill again."""


class CannotExport(Exception):
    """The state at this place is gone; export at a later one, or when it is reached."""


class LayerState(Protocol):
    """One layer's state of all rows. Model files call it as their cache; see each kind.

    Methods that change rows are called for every layer, and then the table's method of the
    same name once: until then all lengths are as they were.
    """

    @property
    def kind(self) -> str:
        """The kind's name: full, rotating, recurrent, latent, opaque, affine, turboquant, paged."""
        ...

    @property
    def is_sliceable(self) -> bool:
        """Whether any run of tokens can be exported and imported by itself.

        Otherwise an export starts at token 0, holds the state at its ``stop``, and is imported
        whole, over whatever the row had.
        """
        ...

    @property
    def can_keep_graph(self) -> bool:
        """Whether a forward of one token a row can be built once and replayed at any lengths."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, spare room included (law 11)."""
        ...

    def resemble(self, other: object) -> None:
        """Know what another state of the same layer has learned of its shapes.

        Without them there are no arrays, and nothing can be imported; a forward tells them, too.
        """
        ...

    def arrays(self) -> list[mx.array]:
        """The live arrays, for evaluation. Nobody keeps them: an alias costs a full copy."""
        ...

    def adopt(self, arrays: Sequence[mx.array]) -> None:
        """Hold ``arrays`` in the place of those that ``arrays()`` lists, in its order."""
        ...

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for so many rows of so many tokens (law 10)."""
        ...

    def prepare(self) -> None:
        """Have room for the forward that the table has begun, before the model is called."""
        ...

    def bytes_after(self, rows: int, columns: int) -> int:
        """Return what ``nbytes`` would be after ``reserve`` of so much."""
        ...

    def fit(self, rows: int, columns: int) -> None:
        """Have room for so many rows of so many tokens and for what there is, and no more."""
        ...

    def row_bytes(self, tokens: int) -> int:
        """Return what a row of so many tokens takes; 0 before the first forward."""
        ...

    def reset(self) -> None:
        """Forget every row and free the arrays."""
        ...

    def clear_row(self, row: int) -> None:
        """Leave nothing of a row in its seat (law 6)."""
        ...

    def copy_row(self, source: int, target: int) -> None:
        """Copy a row over another (law 5)."""
        ...

    def swap_rows(self, a: int, b: int) -> None:
        """Exchange two rows (law 5)."""
        ...

    def can_rollback(self, row: int, tokens: int) -> bool:
        """Whether ``rollback`` is possible; where some layer cannot, none does."""
        ...

    def rollback(self, row: int, tokens: int) -> None:
        """Forget a row's last tokens (law 7).

        Raises:
            CannotRollback: not possible for this kind at this place.
        """
        ...

    @property
    def layout(self) -> str:
        """What an export's bytes mean; equal layouts can import each other's exports."""
        ...

    def export_bytes(self, tokens: int) -> int:
        """Return how many bytes an export of so many tokens takes."""
        ...

    def export_row(self, row: int, start: int, stop: int, target: Bytes) -> None:
        """Copy a row's state of the tokens [start, stop) into ``target`` (law 8).

        Raises:
            CannotExport: this kind has no longer what it takes; nothing was copied.
        """
        ...

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Write an export's tokens [start, stop) into a row (law 9).

        Args:
            row: its length becomes ``stop`` by ``RowTable.imported``, once all have imported.
            start: place of the export's first token.
            stop: end of the tokens that are wanted.
            source: an export of ``held`` tokens from ``start`` on, of which the rest is left.
            held: tokens in ``source``.
        """
        ...
