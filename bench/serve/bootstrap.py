"""How sure a ratio is: block bootstrap, where each seed is a block and has one log ratio.

The ratio is the geometric mean of the blocks' ratios. Its interval holds the middle 95 % of what
the same mean gives over blocks drawn anew, with replacement: the percentile bootstrap.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 20_000
BLOCKS_MIN = 5
LEVEL = 0.95
_SEED = 20_260_913  # the same draws each time, so that a report made twice says the same


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the ratio is with a probability of `LEVEL`."""

    low: float
    high: float


def geometric_mean(ratios: Sequence[float]) -> float:
    """Average ratios, of which one and its inverse average to 1; they are above 0."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def interval(ratios: Sequence[float]) -> Interval | None:
    """Tell how sure the geometric mean of one ratio a block is.

    Args:
        ratios: above 0, of independent blocks, in any order.

    Returns:
        The interval; none for fewer than `BLOCKS_MIN` blocks, of which it would promise too much.
    """
    if len(ratios) < BLOCKS_MIN:
        return None
    logs = np.log(np.sort(np.asarray(ratios, dtype=np.float64)))
    # The mean is taken off and put back, so that equal blocks give exactly their own ratio.
    middle = logs.mean()
    means = _weights(len(ratios)) @ (logs - middle) + middle
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.exp(np.quantile(means, (tail, 1.0 - tail)))
    return Interval(float(low), float(high))


@functools.lru_cache(maxsize=8)
def _weights(blocks: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Draw the share that each block has in each resample."""
    generator = np.random.default_rng(_SEED)
    even = np.full(blocks, 1.0 / blocks)
    return generator.multinomial(blocks, even, size=RESAMPLES) / blocks
