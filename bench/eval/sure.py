"""How sure a mean is: the bootstrap over what it is the mean of; of a share, Wilson's interval."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 20_000
LEVEL = 0.95
THINGS_MIN = 5
_SEED = 20_260_913  # the same draws each time, so that a report made twice says the same
_AT_A_TIME = 1000  # resamples
_DEVIATIONS = 1.959964  # that hold so much of a normal distribution


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Where a figure is with a probability of ``LEVEL``."""

    low: float
    high: float


def interval(sums: Sequence[float], counts: Sequence[float]) -> Interval | None:
    """Tell how sure a mean over all positions of several texts is, or over plain items.

    Whole texts are drawn anew, with replacement: positions of one text are alike.

    Args:
        sums: over the positions of each text.
        counts: its positions; 1 each for plain items.

    Returns:
        The interval; none for fewer than ``THINGS_MIN``, of which it would promise too much, or
        where a sum is infinite.
    """
    totals, sizes = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    if len(totals) < THINGS_MIN or not np.isfinite(totals).all():
        return None
    generator = np.random.default_rng(_SEED)
    means: list[float] = []
    for _ in range(0, RESAMPLES, _AT_A_TIME):
        drawn = generator.integers(len(totals), size=(_AT_A_TIME, len(totals)))
        means += (totals[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)).tolist()
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return Interval(low=float(low), high=float(high))


def wilson(right: int, total: int) -> Interval | None:
    """Tell how sure a share is; unlike a bootstrap, also where all or none are right.

    Args:
        right: of them.
        total: things, each on its own.

    Returns:
        The interval; none for nothing.
    """
    if not total:
        return None
    share, extra = right / total, _DEVIATIONS**2 / total
    middle = (share + extra / 2) / (1 + extra)
    spread = share * (1 - share) / total + extra / (4 * total)
    half = _DEVIATIONS * math.sqrt(spread) / (1 + extra)
    return Interval(low=max(middle - half, 0.0), high=min(middle + half, 1.0))
