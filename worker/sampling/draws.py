"""The draw itself: rows of weights in, one token a row out.

A row is drawn by inverting its sum at a uniform number. Under a top-p that stands alone, it is
drawn from all the weights instead, several times over, and the first draw that top-p keeps
counts: whether it keeps a token takes one sum over the row, where to find all that it keeps takes
many.
"""

import math
from collections.abc import Sequence

import mlx.core as mx

from bramley.worker.sampling.filters import Filters, column, mass_above, part_of
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rng import uniform
from bramley.worker.sampling.rows import a_largest, invert, total

_TRIES_MAX = 63
_TRIES_STREAM = 2
_NEVER = 2.0**-23  # as near to 0 as float32 tells a probability near 1


class Draws:
    """The draws of so many rows."""

    def __init__(self, rows: Sequence[SamplingParams]) -> None:
        self._seeds = [params.seed for params in rows]
        tries = [_tries(params) for params in rows]
        self._filters = Filters(rows, [count > 1 for count in tries])
        retried = [row for row, count in enumerate(tries) if count > 1]
        self._retried = mx.array(retried)
        self._mass = column([rows[row].top_p for row in retried]) if retried else None
        self._tries = mx.array([tries[row] for row in retried])
        # One less than a power of two, so that halving asks about each.
        self._most = (1 << max(tries).bit_length()) - 1 if retried else 1
        self._counts = tries

    def draw(self, weights: mx.array, positions: Sequence[int]) -> mx.array:
        """Choose one token of each row of ``weights`` (B, V), which are 1 at the top."""
        tokens = invert(self._filters.apply(weights, positions), self._points(positions))
        if self._mass is None:
            return tokens[:, 0]
        whole, drawn = part_of(weights, self._retried), part_of(tokens, self._retried)
        first = first_within(whole, drawn, self._mass, self._tries)
        return first if len(first) == len(tokens) else _put(tokens[:, 0], self._retried, first)

    def _points(self, positions: Sequence[int]) -> mx.array:
        return mx.array(
            [
                [uniform(seed, position), *self._more(seed, position, count)]
                for seed, position, count in zip(self._seeds, positions, self._counts, strict=True)
            ],
            mx.float32,
        )

    def _more(self, seed: int, position: int, count: int) -> list[float]:
        used = [uniform(seed, position, _TRIES_STREAM + again) for again in range(count - 1)]
        return used + [0.0] * (self._most - count)


def first_within(weights: mx.array, tokens: mx.array, mass: mx.array, tries: mx.array) -> mx.array:
    """Take each row's first token that top-p keeps; the likeliest where it keeps none.

    Args:
        weights: (B, V), of all tokens.
        tokens: (B, J), J one less than a power of two.
        mass: what top-p keeps, (B, 1).
        tries: how many of a row's tokens count, (B,).

    Returns:
        Tokens, (B,).
    """
    wanted = mass * total(weights)
    theirs = mx.take_along_axis(weights, tokens, axis=-1)
    ordered = -mx.sort(-theirs, axis=-1)
    # Top-p keeps the heavier ones of them: halving finds how many.
    kept = mx.zeros((len(weights), 1), mx.int32)
    step = (tokens.shape[-1] + 1) // 2
    while step:
        asked = mx.take_along_axis(ordered, kept + step - 1, axis=-1)
        kept = mx.where(mass_above(weights, asked) < wanted, kept + step, kept)
        step //= 2
    least = mx.take_along_axis(ordered, mx.maximum(kept - 1, 0), axis=-1)
    counts = mx.arange(tokens.shape[-1]) < tries[:, None]
    good = (theirs >= least) & (kept > 0) & counts
    first = mx.take_along_axis(tokens, mx.argmax(good, axis=-1, keepdims=True), axis=-1)
    return mx.where(mx.any(good, axis=-1, keepdims=True), first, a_largest(weights))[:, 0]


def _tries(params: SamplingParams) -> int:
    """Return how often to draw until one is kept, if not by a chance too small to count.

    Top-k's few candidates tell top-p's floor at once; XTC must know all that top-p keeps; and a
    top-p that keeps little would take too many.
    """
    if params.top_p >= 1 or params.top_k > 0 or params.xtc_probability > 0:
        return 1
    tries = math.ceil(math.log(_NEVER) / math.log1p(-params.top_p))
    return tries if tries <= _TRIES_MAX else 1


def _put(tokens: mx.array, rows: mx.array, drawn: mx.array) -> mx.array:
    tokens[rows] = drawn
    return tokens
