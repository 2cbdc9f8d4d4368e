"""What is learnt from measured steps."""

import pytest

from bramley.worker.engine.costs import Costs


def test_chunks_teach_what_a_token_costs() -> None:
    costs = Costs(forward_s=0.05, token_s=1.0)
    for _ in range(24):
        costs.prefilled(100, 0.25)
    assert costs.token_s == pytest.approx(0.002, rel=0.01)
    assert costs.tokens(0.25) == pytest.approx(100, abs=1)


def test_a_tiny_chunk_that_took_long_does_not_teach_that_tokens_are_free() -> None:
    costs = Costs(forward_s=0.5, token_s=0.001)
    for _ in range(20):
        costs.prefilled(4, 0.4)
    assert costs.tokens(10.0) < 2000


def test_decoding_works_off_what_it_is_owed() -> None:
    costs = Costs()
    costs.prefilled(10, 0.2)
    costs.decoded(0.15)
    assert costs.owed_s == pytest.approx(0.05)
    costs.decoded(0.15)
    assert costs.owed_s == 0.0


def test_decoding_is_owed_its_share_of_a_chunk() -> None:
    costs = Costs()
    costs.prefilled(10, 0.2, share=0.25)
    assert costs.owed_s == pytest.approx(0.05)


def test_what_is_owed_adds_up_to_a_second_at_most() -> None:
    costs = Costs()
    for _ in range(3):
        costs.prefilled(10, 0.2)
    assert costs.owed_s == pytest.approx(0.6)
    costs.prefilled(10, 5.0)
    assert costs.owed_s == 1.0


def test_nobody_who_decodes_is_owed_nothing() -> None:
    costs = Costs()
    costs.prefilled(10, 0.2)
    costs.prefilled(10, 0.2, share=0.0)
    assert costs.owed_s == 0.0
