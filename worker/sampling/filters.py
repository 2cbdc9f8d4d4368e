"""Which tokens may be drawn: top-k, top-p, min-p, then XTC.

Each of the first three looks at the whole distribution, as it was before any other, and none
needs it sorted: what they keep is all at or above some weight, the floor. So tokens of equal
weight are kept or dropped together, and weights nearer than their own rounding may change places.
"""

import math
from collections.abc import Sequence

import mlx.core as mx

from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rng import uniform
from bramley.worker.sampling.rows import best, columns, total

XTC_STREAM = 1

_ONE_BITS = 127 << 23  # of 1.0, as float32
_COLUMN = 64


class Filters:
    """The filters of so many rows."""

    def __init__(self, rows: Sequence[SamplingParams]) -> None:
        self._rows = rows
        self._min_p = _column([p.min_p for p in rows]) if any(p.min_p > 0 for p in rows) else None
        ranked = [row for row, p in enumerate(rows) if p.top_k > 0]
        massed = [row for row, p in enumerate(rows) if p.top_p < 1.0]
        self._ranked = mx.array(ranked) if ranked else None
        self._massed = mx.array(massed) if massed else None
        self._ranks = [rows[row].top_k for row in ranked]
        self._mass = [rows[row].top_p for row in massed]
        self._excludes = any(p.xtc_probability > 0 for p in rows)
        exempt = [(row, token) for row, p in enumerate(rows) for token in sorted(p.xtc_exempt)]
        self._exempt = tuple(mx.array(part) for part in zip(*exempt, strict=True))

    def apply(self, weights: mx.array, positions: Sequence[int]) -> mx.array:
        """Return the weights (B, V), relative to 1 at the top, with 0 where one is dropped."""
        floor = self._floor(weights)
        if floor is not None:
            weights = mx.where(weights >= floor, weights, 0.0)
        return self._exclude(weights, positions) if self._excludes else weights

    def _floor(self, weights: mx.array) -> mx.array | None:
        floor = self._min_p
        for rows, find in (
            (self._ranked, lambda part: rank_floor(part, self._ranks)),
            (self._massed, lambda part: mass_floor(part, self._mass)),
        ):
            if rows is None:
                continue
            floor = mx.zeros((len(weights), 1)) if floor is None else floor
            whole = len(rows) == len(weights)
            found = find(weights if whole else weights[rows])
            floor = mx.maximum(floor, found) if whole else floor.at[rows].maximum(found)
        return floor

    def _exclude(self, weights: mx.array, positions: Sequence[int]) -> mx.array:
        at_least = [
            p.xtc_threshold
            if uniform(p.seed, position, XTC_STREAM) < p.xtc_probability
            else math.inf
            for p, position in zip(self._rows, positions, strict=True)
        ]
        if min(at_least) == math.inf:
            return weights
        choices = (weights >= _column(at_least) * total(weights)) & (weights > 0)
        least = mx.min(mx.where(choices, weights, math.inf), axis=-1, keepdims=True)
        left = mx.where(weights > least, 0.0, weights)
        if self._exempt:
            left[self._exempt] = weights[self._exempt]
        return left


def rank_floor(weights: mx.array, ranks: Sequence[int]) -> mx.array:
    """Return the weight of each row's so-and-so-likeliest token, (B, 1)."""
    size = weights.shape[-1]
    places = [min(rank, size) - 1 for rank in ranks]
    _, found = best(weights, max(places) + 1)
    return mx.take_along_axis(found, mx.array(places)[:, None], axis=-1)


def mass_floor(weights: mx.array, mass: Sequence[float]) -> mx.array:
    """Return the least weight that what is heavier has less than ``mass`` of the row, (B, 1).

    Args:
        weights: (B, V), 1 the largest of each row.
        mass: above 0 and below 1, one a row.
    """
    # Halving, over the bits of a float32, which sort as it does. No token up to ``low`` is kept:
    # all such together, V of them at most, have less than what the filter drops.
    size = weights.shape[-1]
    dropped = [max(1.0 - p, 2.0**-24) / (2 * size) for p in mass]
    whole = total(weights)
    wanted = _column(mass) * whole
    low = (_column(dropped) * whole).view(mx.int32)
    high = mx.full(low.shape, _ONE_BITS, mx.int32)
    cut = columns(weights, _COLUMN, 0.0)
    octaves = -math.log2(min(dropped)) + 1
    for _ in range(math.ceil(math.log2(octaves * 2**23))):
        middle = (low + high) // 2
        heavier = mx.where(cut > middle.view(mx.float32)[:, :, None], cut, 0.0)
        kept = mx.sum(mx.sum(heavier, axis=1), axis=-1, keepdims=True) < wanted
        low, high = mx.where(kept, low, middle), mx.where(kept, middle, high)
    return high.view(mx.float32)


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(values, mx.float32)[:, None]
