"""What a row's parameters say about it."""

from typing import Any

import pytest

from bramley.worker.sampling.params import GREEDY_BELOW, SamplingParams


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({}, True),
        ({"temperature": GREEDY_BELOW / 2}, True),
        ({"temperature": GREEDY_BELOW}, False),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1.0, "top_p": 0.0}, True),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.1, "min_p": 1.0}, False),
    ],
)
def test_a_row_is_greedy_where_one_token_alone_can_be_drawn(
    fields: dict[str, Any], greedy: bool
) -> None:
    assert SamplingParams(**fields).greedy == greedy


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"temperature": 1.0, "seed": 3, "logit_bias": ((1, 2.0),)}, False),
        ({"bad_words": ((4,), (5,))}, False),
        ({"bad_words": ((4,), (5, 6))}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"penalty_window": 5}, False),
    ],
)
def test_history_is_needed_by_penalties_and_longer_words(
    fields: dict[str, Any], needs: bool
) -> None:
    assert SamplingParams(**fields).needs_history == needs
