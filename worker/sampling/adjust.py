"""Penalties, bias and bans of all rows, on the logits: one gather and one scatter."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from bramley.worker.sampling.changes import History, RowChanges
from bramley.worker.sampling.rows import largest

_NO_HISTORY: History = ((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """One step's changes: entry i is of id ``ids[i]`` in row ``rows[i]``."""

    rows: mx.array
    ids: mx.array
    divisor: mx.array
    added: mx.array
    banned: mx.array | None


class Adjustments:
    """The changes of so many rows, from step to step."""

    def __init__(self, rows: Sequence[RowChanges]) -> None:
        self._changes = [(row, change) for row, change in enumerate(rows) if not change.empty]
        self._fixed = all(change.fixed for _, change in self._changes)
        self._kept: _Entries | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is ever changed."""
        return not self._changes

    def apply(
        self,
        logits: mx.array,
        top: mx.array,
        positions: Sequence[int],
        histories: Sequence[History] | None,
    ) -> tuple[mx.array, mx.array]:
        """Return the changed logits, float32, and each row's largest.

        Bans that leave a row nothing are lifted.
        """
        entries = self._kept or self._entries(positions, histories)
        if self._fixed:
            self._kept = entries
        if not entries.ids.size:
            return logits, top
        changed = logits.astype(mx.float32)
        where = (entries.rows, entries.ids)
        old = changed[where]
        new = mx.where(old > 0, old / entries.divisor, old * entries.divisor) + entries.added
        changed[where] = new
        if entries.banned is not None:
            changed[where] = mx.where(entries.banned, -mx.inf, new)
            nothing = mx.isneginf(largest(changed))[entries.rows, 0]
            changed[where] = mx.where(entries.banned & ~nothing, -mx.inf, new)
        return changed, largest(changed)

    def _entries(self, positions: Sequence[int], histories: Sequence[History] | None) -> _Entries:
        rows = [row for row, _ in self._changes]
        parts = [
            change.at(positions[row], histories[row] if histories else _NO_HISTORY)
            for row, change in self._changes
        ]
        banned = np.concatenate([part.banned for part in parts])
        return _Entries(
            rows=mx.array(np.repeat(np.array(rows, np.int32), [len(part.ids) for part in parts])),
            ids=mx.array(np.concatenate([part.ids for part in parts])),
            divisor=mx.array(np.concatenate([part.divisor for part in parts])),
            added=mx.array(np.concatenate([part.added for part in parts])),
            banned=mx.array(banned) == 1 if banned.any() else None,
        )
