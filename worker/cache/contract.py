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
 5. **Moving.** ``move_row`` makes the target row equal the source, at the cost of the two
    rows' own lengths; the source seat may then be reused.
 6. **Leaving.** Removing a row changes no other row, and leaves nothing in its seat: a row
    that went wrong (NaN) must not poison the next one, and a mask does not hold NaN back.
 7. **Rollback.** After ``rollback(row, n)`` the row is as if its last n tokens had never
    been appended; a kind that cannot do that raises CannotRollback and changes nothing.
 8. **Export.** ``export_row`` copies a row's tokens into the caller's memory and keeps no view
    of live state, so later appends neither change the copy nor cost a copy themselves.
 9. **Import.** ``import_row`` of an export makes the row equal what was exported, bit for
    bit; appending to it equals appending to the original.
10. **Growth.** ``reserve`` keeps every row's content.
11. **Bytes.** ``nbytes`` is what the arrays really take, spare room included.
12. **Length.** A row's state is for exactly ``table.lengths[row]`` tokens, also after a
    forward that failed: state beyond it is not part of the row.
"""

from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class CannotRollback(Exception):
    """This kind has no way back over these tokens; restore a snapshot or prefill again."""


class LayerState(Protocol):
    """One layer's state of all rows. Model files call it as their cache; see each kind."""

    @property
    def kind(self) -> str:
        """The kind's name: full, rotating, recurrent, affine, turboquant, paged, latent."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, spare room included (law 11)."""
        ...

    def arrays(self) -> list[mx.array]:
        """The live arrays, for evaluation. Nobody keeps them: an alias costs a full copy."""
        ...

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for so many rows of so many tokens (law 10)."""
        ...

    def reset(self) -> None:
        """Forget every row and free the arrays."""
        ...

    def clear_row(self, row: int) -> None:
        """Leave nothing of a row in its seat (law 6), before its length goes."""
        ...

    def move_row(self, source: int, target: int) -> None:
        """Copy a row over another (law 5). Both lengths are still as they were."""
        ...

    def rollback(self, row: int, tokens: int) -> None:
        """Forget a row's last tokens (law 7), before the caller lowers its length.

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
        """Copy a row's state of the tokens [start, stop) into ``target`` (law 8)."""
        ...

    def import_row(self, row: int, start: int, stop: int, source: Bytes, held: int) -> None:
        """Write an export's tokens [start, stop) into a row (law 9).

        Args:
            row: whose length is the caller's to raise.
            start: place of the export's first token.
            stop: end of the tokens that are wanted.
            source: an export of ``held`` tokens from ``start`` on, of which the rest is left.
            held: tokens in ``source``.
        """
        ...
