"""How often streams are told."""

import pytest

from bramley.worker.pace import LONGEST_S, REST, Pace

COST_S = LONGEST_S / REST / 10


def test_the_first_telling_waits_for_nothing() -> None:
    assert Pace().wait_s(5.0) == 0


def test_after_a_telling_it_rests_in_proportion_to_what_that_took() -> None:
    for cost_s in (COST_S, 2 * COST_S):
        pace = Pace()
        pace.told(cost_s, 5.0)
        assert pace.wait_s(5.0) == pytest.approx(REST * cost_s)
        assert pace.wait_s(5.0 + REST * cost_s) == pytest.approx(0)


def test_a_step_that_takes_longer_than_the_rest_waits_for_nothing() -> None:
    pace = Pace()
    pace.told(COST_S, 5.0)
    assert pace.wait_s(6.0) == 0
    pace.told(COST_S, 6.0)
    assert pace.wait_s(6.0) == pytest.approx(REST * COST_S)  # what was not used is not saved up


def test_what_is_told_during_a_rest_prolongs_it() -> None:
    pace = Pace()
    pace.told(COST_S, 5.0)
    pace.told(COST_S, 5.0)
    assert pace.wait_s(5.0) == pytest.approx(2 * REST * COST_S)


def test_nobody_waits_longer_than_the_longest_rest() -> None:
    pace = Pace()
    for _ in range(3):
        pace.told(LONGEST_S, 5.0)
    assert pace.wait_s(5.0) == pytest.approx(LONGEST_S)
