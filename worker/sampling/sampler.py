"""One vectorised sampler: logits of all rows in, one token a row out.

In this order, each where a row asks for it: what its guide allows; penalties (repetition, then
presence and frequency), bias, bans; temperature; top-k, top-p and min-p, each over the whole
distribution at that temperature; XTC over what they keep; the draw. Log-probabilities are the
model's own, of the logits as they came.

All of a row's randomness is a few uniform numbers, which the host makes from (seed, position).
Every operation works within a row: neighbours never change a row's token. Nothing here waits for
the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bramley.worker.grammar import masks
from bramley.worker.sampling.adjust import Adjustments
from bramley.worker.sampling.changes import History, RowChanges
from bramley.worker.sampling.draws import Draws
from bramley.worker.sampling.logprobs import Scores, score
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rows import largest
from bramley.worker.sampling.weights import LOG2_E, weigh


@dataclass(frozen=True, slots=True)
class RowRule:
    """What one row asks of every draw.

    Attributes:
        logprobs: alternatives wanted beside the token's own log-probability; -1 for neither.
        min_until: position before which none of ``blocked`` is drawn.
        blocked: ids.
        is_guided: whether something tells at each step which ids may be drawn.
    """

    params: SamplingParams
    logprobs: int = -1
    min_until: int = 0
    blocked: frozenset[int] = frozenset()
    is_guided: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """One draw, not evaluated.

    Attributes:
        tokens: (B,), uint32.
        broken: (B,), where a row has no distribution: a NaN, +inf, or nothing above -inf. Its
            token and log-probabilities mean nothing.
        scores: of the rows that ask for log-probabilities, in their order, if any does; each
            with the most alternatives that any of them asks for.
    """

    tokens: mx.array
    broken: mx.array
    scores: Scores | None = None

    def arrays(self) -> list[mx.array]:
        """List what must be evaluated."""
        scored = self.scores.arrays() if self.scores is not None else []
        return [self.tokens, self.broken, *scored]


class RowSampler:
    """Draws for rows in one order, as long as it lasts.

    Attributes:
        needs_history: whether some row's draw depends on the tokens before it.
        is_guided: whether some row may draw certain ids only, as the tokens before it have it.
    """

    def __init__(self, rows: Sequence[RowRule]) -> None:
        self._rows = [row.params for row in rows]
        self.needs_history = any(params.needs_history for params in self._rows)
        self.is_guided = any(row.is_guided for row in rows)
        self._drawn = [row for row, params in enumerate(self._rows) if not params.greedy]
        greedy = [row for row, params in enumerate(self._rows) if params.greedy]
        self._drawn_index, self._greedy_index = mx.array(self._drawn), mx.array(greedy)
        drawn = [self._rows[row] for row in self._drawn]
        self._sharpness = mx.array([LOG2_E / params.temperature for params in drawn])[:, None]
        self._draws = Draws(drawn)
        order = [*greedy, *self._drawn]
        self._back = mx.array([order.index(row) for row in range(len(rows))])
        self._adjustments = Adjustments(
            [RowChanges(row.params, row.min_until, row.blocked) for row in rows]
        )
        self._scored = [row for row, rule in enumerate(rows) if rule.logprobs >= 0]
        self._top = max((rule.logprobs for rule in rows), default=-1)
        self._scored_index = mx.array(self._scored)

    def draw(
        self,
        logits: mx.array,
        positions: Sequence[int],
        histories: Sequence[History] | None = None,
        allowed: NDArray[np.uint32] | None = None,
    ) -> Sampled:
        """Choose the next token of each row.

        Args:
            logits: (B, V).
            positions: of the tokens to be drawn.
            histories: prompt and output of each row, the lists themselves, to which only new
                output is ever added; read where a row needs it.
            allowed: packed masks (grammar/masks.py); None where every row may draw any id.

        Returns:
            All lazy.
        """
        changed = logits if allowed is None else masks.apply(logits, allowed)
        top = largest(changed)
        broken = ~mx.isfinite(top[:, 0])
        if not self._adjustments.empty:
            changed, top = self._adjustments.apply(changed, top, positions, histories)
        tokens = self._choose(changed, top, positions)
        if not self._scored:
            return Sampled(tokens, broken)
        return Sampled(tokens, broken, self._score(logits, tokens))

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
        weights = weigh(logits.astype(mx.float32), top.astype(mx.float32), self._sharpness)
        return self._draws.draw(weights, positions).astype(mx.uint32)

    def _score(self, logits: mx.array, tokens: mx.array) -> Scores:
        if len(self._scored) == len(self._rows):
            return score(logits, tokens, self._top)
        return score(logits[self._scored_index], tokens[self._scored_index], self._top)
