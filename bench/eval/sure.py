"""How sure a mean is: the percentile bootstrap over the things it is the mean of."""

from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 20_000
LEVEL = 0.95
THINGS_MIN = 5
_SEED = 20_260_913  # the same draws each time, so that a report made twice says the same
_AT_A_TIME = 1000  # resamples


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
