"""The sampler: each row by its own parameters, whatever shares the batch."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rng import uniform
from bramley.worker.sampling.sampler import Draw, sample
from support.arrays import ids

VOCABULARY = 50
LOGITS = np.random.default_rng(7).normal(size=VOCABULARY).astype(np.float32) * 2
ORDER = list(np.argsort(-LOGITS))
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum()


def draw(params: SamplingParams, count: int = 1, first: int = 0) -> list[int]:
    logits = mx.array(np.tile(LOGITS, (count, 1)))
    return [
        int(t) for t in np.array(sample(logits, [Draw(params, first + i) for i in range(count)]))
    ]


def test_greedy_takes_the_most_likely() -> None:
    assert draw(SamplingParams(temperature=0.0), 3) == [ORDER[0]] * 3


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-6, 1e-9, 1e-40])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
def test_b041_a_very_small_temperature_is_greedy(temperature: float, top_p: float) -> None:
    assert draw(SamplingParams(temperature=temperature, top_p=top_p), 20) == [ORDER[0]] * 20


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.0),
        SamplingParams(temperature=1.0, top_p=1e-9),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, min_p=1.0),
    ],
)
def test_b041_the_tightest_filter_keeps_the_top_token_alone(params: SamplingParams) -> None:
    assert draw(params, 50) == [ORDER[0]] * 50


def test_draws_follow_the_distribution() -> None:
    counts = Counter(draw(SamplingParams(temperature=1.0, seed=3), 20_000))
    seen = np.array([counts[token] for token in range(VOCABULARY)]) / 20_000
    assert np.abs(seen - PROBABILITIES).max() < 0.012  # four standard deviations at p = 0.2


def test_filtered_draws_follow_the_cut_distribution() -> None:
    counts = Counter(draw(SamplingParams(temperature=1.0, seed=4, top_k=3), 20_000))
    assert set(counts) == set(ORDER[:3])
    kept = PROBABILITIES[ORDER[:3]] / PROBABILITIES[ORDER[:3]].sum()
    seen = np.array([counts[token] for token in ORDER[:3]]) / 20_000
    assert np.abs(seen - kept).max() < 0.014


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    needed = int(np.searchsorted(np.cumsum(PROBABILITIES[ORDER]), 0.5)) + 1
    counts = Counter(draw(SamplingParams(temperature=1.0, top_p=0.5), 5_000))
    assert set(counts) == set(ORDER[:needed])


def test_min_p_is_relative_to_the_top_token() -> None:
    kept = {t for t in range(VOCABULARY) if PROBABILITIES[t] >= 0.2 * PROBABILITIES.max()}
    assert set(draw(SamplingParams(temperature=1.0, min_p=0.2), 5_000)) == kept


def test_a_token_is_a_function_of_seed_and_position() -> None:
    params = SamplingParams(temperature=1.0, seed=11)
    assert draw(params, 40) == draw(params, 40)
    assert draw(params, 1, first=17)[0] == draw(params, 40)[17]
    assert draw(params, 40) != draw(SamplingParams(temperature=1.0, seed=12), 40)


def test_a_row_draws_the_same_whatever_its_neighbours_ask() -> None:
    wishes = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.7, seed=2, top_p=0.9),
        SamplingParams(temperature=1.3, seed=3, top_k=5, min_p=0.01),
        SamplingParams(temperature=1e-40, seed=4),
    ]
    for position in range(20):
        draws = [Draw(params, position) for params in wishes]
        together = ids(sample(mx.array(np.tile(LOGITS, (len(wishes), 1))), draws))
        for row, params in enumerate(wishes):
            assert together[row] == draw(params, 1, first=position)[0]


def test_b041_a_neighbour_of_extreme_wishes_keeps_its_token() -> None:
    logits = np.tile(LOGITS, (2, 1))
    logits[1, 7:] = -np.inf
    wishes = [Draw(SamplingParams(), 0), Draw(SamplingParams(temperature=1e-5, top_p=1e-9), 0)]
    assert ids(sample(mx.array(logits), wishes)) == [ORDER[0], logits[1, :7].argmax()]


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.tile(LOGITS, (2000, 1))
    logits[:, ORDER[0]] = -np.inf
    draws = [Draw(SamplingParams(temperature=2.0, seed=9), i) for i in range(2000)]
    assert ORDER[0] not in set(ids(sample(mx.array(logits), draws)))


def test_uniform_numbers_are_spread_over_positions_and_seeds() -> None:
    by_position = np.array([uniform(5, position) for position in range(20_000)])
    by_seed = np.array([uniform(seed, 5) for seed in range(20_000)])
    for numbers in (by_position, by_seed):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        histogram, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert np.abs(histogram - 1000).max() < 160  # five standard deviations
    assert abs(np.corrcoef(by_position[:-1], by_position[1:])[0, 1]) < 0.03
