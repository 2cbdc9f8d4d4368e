"""Which cohort a new row joins."""

from bramley.worker.engine.grouping import choose_cohort


def test_rows_of_like_length_run_together() -> None:
    assert choose_cohort({0: [100, 120]}, 110, 3000) == 0


def test_a_row_that_would_make_all_others_padding_runs_apart() -> None:
    assert choose_cohort({0: [60] * 7}, 1900, 3000) is None


def test_the_cohort_with_the_least_padding_is_chosen() -> None:
    assert choose_cohort({0: [60, 80], 1: [1900]}, 1500, 3000) == 1
    assert choose_cohort({0: [60, 80], 1: [1900]}, 50, 3000) == 0


def test_an_empty_cohort_takes_any_row() -> None:
    assert choose_cohort({0: []}, 100_000, 1) == 0
