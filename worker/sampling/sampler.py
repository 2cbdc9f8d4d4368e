"""One vectorised sampler: logits of all rows in, one token a row out.

Rows are drawn by inverting the distribution's sum at one uniform number, so that a row
needs a single random number, which the host makes from (seed, position). Every operation
works within a row: neighbours never change a row's token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rng import uniform


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's wish: its parameters, and the position of the token to be drawn."""

    params: SamplingParams
    position: int


def sample(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Choose the next token of each row.

    Args:
        logits: (B, V); a row with a NaN gives an arbitrary token.
        draws: one a row.

    Returns:
        Token ids, (B,), uint32, not evaluated.
    """
    chosen = mx.argmax(logits, axis=-1)
    # A row goes the way its own parameters ask for, or a neighbour would change its token.
    plain = [i for i, d in enumerate(draws) if not d.params.greedy and not d.params.filters]
    filtered = [i for i, d in enumerate(draws) if not d.params.greedy and d.params.filters]
    for rows, choose in ((plain, _from_all), (filtered, _from_filtered)):
        if rows:
            index = mx.array(rows)
            chosen[index] = choose(logits[index], [draws[row] for row in rows])
    return chosen


def _from_all(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    return _invert(mx.exp(_scaled(logits, draws)), _points(draws))


def _from_filtered(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    scaled = _scaled(logits, draws)
    order = mx.argsort(-scaled, axis=-1)
    weights = mx.exp(mx.take_along_axis(scaled, order, axis=-1))
    place = _invert(_filtered(weights, [draw.params for draw in draws]), _points(draws))
    return mx.take_along_axis(order, place[:, None], axis=-1)[:, 0]


def _scaled(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    logits = logits.astype(mx.float32)
    # Relative to the top, so that a small temperature sends the rest to 0 and nothing to inf.
    top = mx.max(logits, axis=-1, keepdims=True)
    return (logits - top) / mx.array([draw.params.temperature for draw in draws])[:, None]


def _points(draws: Sequence[Draw]) -> mx.array:
    return mx.array([uniform(draw.params.seed, draw.position) for draw in draws])[:, None]


def _filtered(weights: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    # Weights fall from 1 along each row. Each filter looks at the whole distribution, as it
    # was before any other was applied.
    size = weights.shape[-1]
    ranks = mx.arange(size)
    top_k = mx.array([p.top_k or size for p in params])[:, None]
    min_p = mx.array([p.min_p for p in params])[:, None]
    top_p = mx.array([p.top_p for p in params])[:, None]
    before = mx.cumsum(weights, axis=-1, inclusive=False)
    total = mx.sum(weights, axis=-1, keepdims=True)
    inside = (before < top_p * total) | (top_p >= 1.0) | (ranks == 0)
    kept = (ranks < top_k) & (weights >= min_p) & inside
    return mx.where(kept, weights, 0.0)


def _invert(weights: mx.array, points: mx.array) -> mx.array:
    """Return where the running sum of ``weights`` (B, V) passes ``points`` (B, 1) of it."""
    sums = mx.cumsum(weights, axis=-1)
    # The first place whose sum lies beyond the point has weight above zero. The last sum
    # is beyond every point, since points are below 1.
    return mx.argmax(sums > points * sums[:, -1:], axis=-1)
