"""Retries never double a load, and a request that kills workers is found out."""

from bramley.router.retries import REMEMBERED, REMEMBERED_S, SAVED_MAX, RetryBudget, Suspects


def spend_all(budget: RetryBudget) -> int:
    count = 0
    while budget.spend():
        count += 1
    return count


def test_retries_are_a_tenth_of_the_requests_with_ten_saved_up() -> None:
    budget = RetryBudget()
    assert spend_all(budget) == SAVED_MAX
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert 95 <= spent <= 100


def test_no_more_than_ten_are_saved_up() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.earn()
    assert spend_all(budget) == SAVED_MAX


def test_deaths_are_counted_by_what_was_asked_and_forgotten_in_time() -> None:
    suspects = Suspects()
    suspects.died(b"a", "w-1", 0.0)
    suspects.died(b"a", "w-2", 1.0)
    suspects.died(b"b", "w-2", 1.0)
    assert (suspects.deaths(b"a", 2.0), suspects.deaths(b"b", 2.0)) == (2, 1)
    assert suspects.deaths(b"c", 2.0) == 0
    assert suspects.deaths(b"a", 1.0 + REMEMBERED_S) == 0
    suspects.died(b"b", "w-3", 1.0 + REMEMBERED_S)
    assert suspects.deaths(b"b", 1.0 + REMEMBERED_S) == 1


def test_a_worker_dies_once_whoever_asked_the_same_of_it() -> None:
    suspects = Suspects()
    suspects.died(b"a", "w-1", 0.0)
    suspects.died(b"a", "w-1", 0.1)
    assert suspects.deaths(b"a", 0.2) == 1


def test_who_ended_well_is_no_suspect() -> None:
    suspects = Suspects()
    suspects.died(b"a", "w-1", 0.0)
    suspects.cleared(b"a")
    suspects.cleared(b"unknown")
    assert suspects.deaths(b"a", 0.0) == 0


def test_nobody_is_suspected_once_the_last_death_is_long_ago() -> None:
    suspects = Suspects()
    assert not suspects.has_any(0.0)
    suspects.died(b"a", "w-1", 0.0)
    suspects.died(b"b", "w-2", 1.0)
    suspects.died(b"a", "w-3", 2.0)
    assert suspects.has_any(REMEMBERED_S + 1.5)
    assert not suspects.has_any(REMEMBERED_S + 2.0)


def test_only_so_many_are_remembered() -> None:
    suspects = Suspects()
    for number in range(REMEMBERED + 1):
        suspects.died(str(number).encode(), "w-1", 0.0)
    assert suspects.deaths(b"0", 0.0) == 0
    assert suspects.deaths(b"1", 0.0) == 1
