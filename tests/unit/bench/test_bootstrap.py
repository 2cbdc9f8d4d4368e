"""What an interval of a ratio promises, tried where the answer is known."""

import itertools
import math
import random
import time
from collections.abc import Sequence

import pytest

from bramley.bench.serve.bootstrap import BLOCKS_MIN, Interval, geometric_mean, interval


def sure(ratios: Sequence[float]) -> Interval:
    found = interval(ratios)
    assert found is not None
    return found


def test_a_ratio_and_its_inverse_average_to_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([1.1, 1.1, 1.1]) == pytest.approx(1.1)


def test_too_few_blocks_have_no_interval() -> None:
    assert interval([1.1] * (BLOCKS_MIN - 1)) is None
    assert interval([1.1] * BLOCKS_MIN) is not None


def test_blocks_that_agree_are_sure_of_their_own_ratio() -> None:
    found = sure([1.25] * 7)
    assert (found.low, found.high) == pytest.approx((1.25, 1.25), abs=1e-12)


def test_the_interval_is_that_of_all_resamples_there_are() -> None:
    """Five blocks have 3,125 resamples, which can be gone through one by one."""
    ratios = [0.9, 1.0, 1.15, 1.2, 1.6]
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted(sum(drawn) / 5 for drawn in itertools.product(logs, repeat=5))
    low, high = (math.exp(means[round(share * (len(means) - 1))]) for share in (0.025, 0.975))
    found = sure(ratios)
    assert found.low == pytest.approx(low, rel=0.01)
    assert found.high == pytest.approx(high, rel=0.01)


def test_the_same_blocks_give_the_same_interval_in_any_order() -> None:
    ratios = [1.0, 1.3, 0.8, 1.1, 1.2, 0.97]
    assert sure(ratios) == sure(ratios[::-1]) == sure(ratios)


def test_upside_down_the_interval_is_upside_down() -> None:
    ratios = [1.02, 1.3, 0.8, 1.1, 1.2, 0.97]
    found, inverse = sure(ratios), sure([1 / ratio for ratio in ratios])
    assert inverse.low == pytest.approx(1 / found.high, rel=0.01)
    assert inverse.high == pytest.approx(1 / found.low, rel=0.01)


def test_more_blocks_are_surer() -> None:
    few, many = sure([0.9, 1.0, 1.1, 1.2, 1.3]), sure([0.9, 1.0, 1.1, 1.2, 1.3] * 8)
    assert many.high - many.low < (few.high - few.low) / 2


@pytest.mark.parametrize(("blocks", "least", "most"), [(5, 0.76, 0.92), (20, 0.89, 0.97)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(
    blocks: int, least: float, most: float
) -> None:
    """Of few blocks it is too sure of itself, by sqrt((n - 1) / n) and by Student's tails."""
    drawn, truth, tries = random.Random(7), 1.2, 400  # noqa: S311
    held = 0
    for _ in range(tries):
        found = sure([truth * math.exp(drawn.gauss(0.0, 0.1)) for _ in range(blocks)])
        held += found.low <= truth <= found.high
    assert least <= held / tries <= most


def test_a_report_s_hundred_intervals_take_no_time() -> None:
    began_s = time.process_time()
    for number in range(100):
        sure([1.0 + number * step for step in (0.1, 0.2, 0.3, 0.4, 0.5)])
    assert time.process_time() - began_s < 2.0
