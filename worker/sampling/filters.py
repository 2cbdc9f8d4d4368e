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
from bramley.worker.sampling.rows import best_values, total

XTC_STREAM = 1

_ONE_BITS = 127 << 23  # of 1.0, as float32


class Filters:
    """The filters of so many rows, but for a top-p that is left to the draw.

    Args:
        rows: one's parameters each.
        left: which rows' top-p is applied by drawing again.
    """

    def __init__(self, rows: Sequence[SamplingParams], left: Sequence[bool]) -> None:
        self._rows = rows
        self._min_p = column([p.min_p for p in rows]) if any(p.min_p > 0 for p in rows) else None
        ranked = [row for row, p in enumerate(rows) if p.top_k > 0]
        massed = [
            row for row, p in enumerate(rows) if p.top_p < 1 and p.top_k <= 0 and not left[row]
        ]
        self._ranked = mx.array(ranked) if ranked else None
        self._massed = mx.array(massed) if massed else None
        self._ranks = [rows[row].top_k for row in ranked]
        self._ranked_mass = [rows[row].top_p for row in ranked]
        self._mass = [rows[row].top_p for row in massed]
        self._excludes = any(p.xtc_probability > 0 for p in rows)
        exempt = [
            (row, token)
            for row, p in enumerate(rows)
            if p.xtc_probability > 0
            for token in sorted(p.xtc_exempt)
        ]
        self._exempt = tuple(mx.array(part) for part in zip(*exempt, strict=True))

    def apply(self, weights: mx.array, positions: Sequence[int]) -> mx.array:
        """Return the weights (B, V), relative to 1 at the top, with 0 where one is dropped."""
        floor = self._floor(weights)
        if floor is not None:
            weights = mx.where(weights >= floor, weights, 0.0)
        return self._exclude(weights, positions) if self._excludes else weights

    def _floor(self, weights: mx.array) -> mx.array | None:
        floor = self._min_p
        if self._ranked is not None:
            found = rank_floor(part_of(weights, self._ranked), self._ranks, self._ranked_mass)
            floor = _raised(floor, found, self._ranked, len(weights))
        if self._massed is not None:
            found = mass_floor(part_of(weights, self._massed), self._mass)
            floor = _raised(floor, found, self._massed, len(weights))
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
        choices = (weights >= column(at_least) * total(weights)) & (weights > 0)
        least = mx.min(mx.where(choices, weights, math.inf), axis=-1, keepdims=True)
        left = mx.where(weights > least, 0.0, weights)
        if self._exempt:
            left[self._exempt] = weights[self._exempt]
        return left


def rank_floor(weights: mx.array, ranks: Sequence[int], mass: Sequence[float]) -> mx.array:
    """Find the least weight that both top-k and top-p keep.

    Args:
        weights: (B, V).
        ranks: tokens that top-k keeps of each row; above V, all.
        mass: of each row, above 0; from 1 on, top-p keeps all.

    Returns:
        One a row, (B, 1).
    """
    most = min(max(ranks), weights.shape[-1])
    found = best_values(weights, most)
    heavier = mx.cumsum(found, axis=-1, inclusive=False)
    within = (heavier < column(mass) * total(weights)) | (column(mass) >= 1)
    kept = (mx.arange(most) < mx.array(list(ranks))[:, None]) & within
    return mx.min(mx.where(kept, found, math.inf), axis=-1, keepdims=True)


def mass_floor(weights: mx.array, mass: Sequence[float]) -> mx.array:
    """Find the least weight that top-p keeps: what is heavier has less than ``mass`` of the row.

    Args:
        weights: (B, V), 1 the largest of each row.
        mass: above 0 and below 1, one a row.

    Returns:
        One a row, (B, 1).
    """
    # Halving, over the bits of a float32, which sort as it does. No token up to ``low`` is kept:
    # all such together, V of them at most, have less than what the filter drops.
    size = weights.shape[-1]
    dropped = [max(1.0 - p, 2.0**-24) / (2 * size) for p in mass]
    whole = total(weights)
    wanted = column(mass) * whole
    low = (column(dropped) * whole).view(mx.int32)
    high = mx.full(low.shape, _ONE_BITS, mx.int32)
    octaves = -math.log2(min(dropped)) + 1
    for _ in range(math.ceil(math.log2(octaves * 2**23))):
        middle = (low + high) // 2
        kept = mass_above(weights, middle.view(mx.float32)) < wanted
        low, high = mx.where(kept, low, middle), mx.where(kept, middle, high)
    return high.view(mx.float32)


def mass_above(weights: mx.array, floor: mx.array) -> mx.array:
    """Sum what is heavier than ``floor`` (B, 1) in each row of (B, V)."""
    return total(mx.where(weights > floor, weights, 0.0))


def part_of(rows: mx.array, index: mx.array) -> mx.array:
    """Take rows in ascending order; all of them as they are."""
    return rows if len(index) == len(rows) else rows[index]


def column(values: Sequence[float]) -> mx.array:
    """Make one float32 a row, (B, 1)."""
    return mx.array(list(values), mx.float32)[:, None]


def _raised(floor: mx.array | None, found: mx.array, rows: mx.array, count: int) -> mx.array:
    if floor is None:
        floor = mx.zeros((count, 1))
    return floor.at[rows].maximum(found)
