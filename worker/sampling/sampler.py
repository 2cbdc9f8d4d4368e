"""One vectorised sampler: logits of all rows in, one token a row out.

In this order, each where a row asks for it: penalties (repetition, then presence and frequency),
bias, bans; temperature; top-k, top-p and min-p, each over the whole distribution at that
temperature; XTC over what they keep; the draw. Log-probabilities are the model's own, of the
logits as they came.

A row is drawn by inverting the distribution's sum, over ids, at one uniform number, which the
host makes from (seed, position). Every operation works within a row: neighbours never change a
row's token. Nothing here waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from bramley.worker.sampling.changes import History, RowChanges
from bramley.worker.sampling.filters import Filters
from bramley.worker.sampling.logprobs import logprobs
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rng import uniform
from bramley.worker.sampling.rows import invert, largest
from bramley.worker.sampling.weights import LOG2_E, weigh

_NO_HISTORY: History = ((), ())


@dataclass(frozen=True, slots=True)
class RowRule:
    """What one row asks of every draw.

    Attributes:
        logprobs: alternatives wanted beside the token's own log-probability; -1 for neither.
        min_until: position before which none of ``blocked`` is drawn.
        blocked: ids.
    """

    params: SamplingParams
    logprobs: int = -1
    min_until: int = 0
    blocked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sampled:
    """One draw, not evaluated.

    Attributes:
        tokens: (B,), uint32.
        broken: (B,), where a row has no distribution: a NaN, +inf, or nothing above -inf. Its
            token and log-probabilities mean nothing.
        logprobs: (B,), float32, if any row asks; 0 where it does not.
        top_ids: (B, K), best first, K the most that any row asks for.
        top_logprobs: (B, K).
    """

    tokens: mx.array
    broken: mx.array
    logprobs: mx.array | None = None
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """List what must be evaluated."""
        parts = (self.tokens, self.broken, self.logprobs, self.top_ids, self.top_logprobs)
        return [part for part in parts if part is not None]


class RowSampler:
    """Draws for rows in one order, as long as it lasts.

    Attributes:
        needs_history: whether some row's draw depends on the tokens before it.
    """

    def __init__(self, rows: Sequence[RowRule]) -> None:
        self._rows = [row.params for row in rows]
        self.needs_history = any(params.needs_history for params in self._rows)
        self._drawn = [row for row, params in enumerate(self._rows) if not params.greedy]
        greedy = [row for row, params in enumerate(self._rows) if params.greedy]
        self._drawn_index, self._greedy_index = mx.array(self._drawn), mx.array(greedy)
        drawn = [self._rows[row] for row in self._drawn]
        self._seeds = [params.seed for params in drawn]
        self._sharpness = mx.array([LOG2_E / params.temperature for params in drawn])[:, None]
        self._filters = Filters(drawn)
        back = np.argsort([*greedy, *self._drawn])
        self._back = mx.array(back)
        changes = [RowChanges(row.params, row.min_until, row.blocked) for row in rows]
        self._changes = [(row, change) for row, change in enumerate(changes) if not change.empty]
        self._fixed: _Changes | None = None
        self._scored = [row for row, rule in enumerate(rows) if rule.logprobs >= 0]
        self._top = max((rule.logprobs for rule in rows), default=-1)
        self._scored_index = mx.array(self._scored)

    def draw(
        self,
        logits: mx.array,
        positions: Sequence[int],
        histories: Sequence[History] | None = None,
    ) -> Sampled:
        """Choose the next token of each row.

        Args:
            logits: (B, V).
            positions: of the tokens to be drawn.
            histories: prompt and output of each row, the lists themselves, to which only new
                output is ever added; read where a row needs it.
        """
        top = largest(logits)
        broken = ~mx.isfinite(top[:, 0])
        changed = logits
        if self._changes:
            changed, top = self._changes_at(positions, histories).apply(logits, top)
        tokens = self._choose(changed, top, positions)
        if not self._scored:
            return Sampled(tokens, broken)
        return Sampled(tokens, broken, *self._score(logits, tokens))

    def _choose(self, logits: mx.array, top: mx.array, positions: Sequence[int]) -> mx.array:
        if not self._drawn:
            return mx.argmax(logits, axis=-1)
        if len(self._drawn) == len(self._rows):
            return self._sample(logits, top, positions)
        positions = [positions[row] for row in self._drawn]
        drawn = self._sample(logits[self._drawn_index], top[self._drawn_index], positions)
        greedy = mx.argmax(logits[self._greedy_index], axis=-1)
        return mx.concatenate([greedy, drawn])[self._back]

    def _sample(self, logits: mx.array, top: mx.array, positions: Sequence[int]) -> mx.array:
        numbers = map(uniform, self._seeds, positions)
        points = mx.array(list(numbers), mx.float32)[:, None]
        weights = weigh(logits.astype(mx.float32), top.astype(mx.float32), self._sharpness)
        return invert(self._filters.apply(weights, positions), points).astype(mx.uint32)

    def _changes_at(
        self, positions: Sequence[int], histories: Sequence[History] | None
    ) -> "_Changes":
        if self._fixed is not None:
            return self._fixed
        parts = [
            (row, change.at(positions[row], histories[row] if histories else _NO_HISTORY))
            for row, change in self._changes
        ]
        rows = np.repeat([row for row, _ in parts], [len(part.ids) for _, part in parts])
        changes = _Changes(
            rows=mx.array(rows),
            ids=mx.array(np.concatenate([part.ids for _, part in parts])),
            divisor=mx.array(np.concatenate([part.divisor for _, part in parts])),
            added=mx.array(np.concatenate([part.added for _, part in parts])),
            banned=mx.array(np.concatenate([part.banned for _, part in parts])),
            bans=any(part.banned.any() for _, part in parts),
        )
        if all(change.fixed for _, change in self._changes):
            self._fixed = changes
        return changes

    def _score(
        self, logits: mx.array, tokens: mx.array
    ) -> tuple[mx.array, mx.array | None, mx.array | None]:
        whole = len(self._scored) == len(self._rows)
        index = self._scored_index
        if not whole:
            logits, tokens = logits[index], tokens[index]
        parts = logprobs(logits, tokens, self._top)
        if not whole:
            parts = tuple(_spread(part, index, len(self._rows)) for part in parts)
        mine, ids, theirs = parts
        return (mine, ids, theirs) if self._top else (mine, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """All rows' changes: entry i is of id ``ids[i]`` in row ``rows[i]``."""

    rows: mx.array
    ids: mx.array
    divisor: mx.array
    added: mx.array
    banned: mx.array
    bans: bool

    def apply(self, logits: mx.array, top: mx.array) -> tuple[mx.array, mx.array]:
        """Return the changed logits and each row's largest.

        Bans that leave a row nothing are lifted.
        """
        if not self.ids.size:
            return logits, top
        logits = logits.astype(mx.float32)
        old = logits[self.rows, self.ids]
        free = mx.where(old > 0, old / self.divisor, old * self.divisor) + self.added
        if not self.bans:
            logits[self.rows, self.ids] = free
            return logits, largest(logits)
        logits[self.rows, self.ids] = mx.where(self.banned, -mx.inf, free)
        nothing = mx.isneginf(largest(logits))[self.rows, 0]
        logits[self.rows, self.ids] = mx.where(self.banned & ~nothing, -mx.inf, free)
        return logits, largest(logits)


def _spread(part: mx.array, index: mx.array, count: int) -> mx.array:
    spread = mx.zeros((count, *part.shape[1:]), part.dtype)
    spread[index] = part
    return spread


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's wish: its parameters, and the position of the token to be drawn."""

    params: SamplingParams
    position: int


def sample(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Choose each row's next token by parameters that need no history."""
    sampler = RowSampler([RowRule(draw.params) for draw in draws])
    return sampler.draw(logits, [draw.position for draw in draws]).tokens
