"""Random numbers of (seed, position)."""

import numpy as np

from bramley.worker.sampling.rng import uniform


def test_numbers_are_the_same_on_every_machine() -> None:
    drawn = [uniform(0, 0), uniform(2**64 - 1, 7), uniform(5, 3, 1)]
    assert drawn == [0.8833107948303223, 0.7741445302963257, 0.9200700521469116]
    assert all(number * 2**24 == int(number * 2**24) for number in drawn)


def test_numbers_are_spread_over_positions_seeds_and_streams() -> None:
    by_position = np.array([uniform(5, position) for position in range(20_000)])
    by_seed = np.array([uniform(seed, 5) for seed in range(20_000)])
    by_stream = np.array([uniform(5, 5, stream) for stream in range(20_000)])
    for numbers in (by_position, by_seed, by_stream):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        histogram, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert np.abs(histogram - 1000).max() < 160  # five standard deviations
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_streams_have_nothing_to_do_with_each_other() -> None:
    streams = np.array([[uniform(5, i, stream) for i in range(5_000)] for stream in range(4)])
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.06
