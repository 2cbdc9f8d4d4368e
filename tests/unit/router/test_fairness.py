"""Keys take turns by what they cost, deadlines order each, and nobody saves up a claim."""

from collections import Counter
from math import inf

from bramley.common.ids import RequestId
from bramley.router.fairness import Turns


def fill(turns: Turns, key: str, count: int, cost: float = 1.0, owner: str = "") -> None:
    for number in range(count):
        turns.add(RequestId(f"{key}{number}"), (owner, key), inf, cost)


def take(turns: Turns, count: int) -> list[str]:
    return [str(turns.take()) for _ in range(count)]


def test_keys_take_turns_whatever_each_has_waiting() -> None:
    turns = Turns()
    fill(turns, "a", 9)
    fill(turns, "b", 2)
    assert take(turns, 5) == ["a0", "b0", "a1", "b1", "a2"]


def test_a_key_that_costs_ten_times_as_much_has_a_tenth_of_the_turns() -> None:
    turns = Turns()
    fill(turns, "a", 50, cost=10.0)
    fill(turns, "b", 50, cost=1.0)
    counted = Counter(name[0] for name in take(turns, 22))
    assert counted == {"a": 2, "b": 20}


def test_a_key_that_was_away_has_no_claim_to_what_it_missed() -> None:
    turns = Turns()
    fill(turns, "a", 20)
    take(turns, 10)
    fill(turns, "b", 10)
    counted = Counter(name[0] for name in take(turns, 10))
    assert counted == {"a": 5, "b": 5}


def test_a_key_that_asks_one_at_a_time_pays_for_the_last_one() -> None:
    turns = Turns()
    fill(turns, "a", 9, cost=1.0)
    turns.add(RequestId("b0"), ("", "b"), inf, 3.0)
    assert take(turns, 2) == ["a0", "b0"]
    turns.add(RequestId("b1"), ("", "b"), inf, 3.0)
    assert take(turns, 4) == ["a1", "a2", "a3", "b1"]


def test_the_earliest_deadline_of_a_key_is_first() -> None:
    turns = Turns()
    for name, deadline_s in (("late", 9.0), ("never", inf), ("soon", 1.0), ("never2", inf)):
        turns.add(RequestId(name), ("", ""), deadline_s, 1.0)
    assert take(turns, 4) == ["soon", "late", "never", "never2"]


def test_who_left_has_no_turn_and_counts_no_more() -> None:
    turns = Turns()
    fill(turns, "a", 3)
    turns.discard(RequestId("a0"))
    turns.discard(RequestId("unknown"))
    assert len(turns) == 2
    assert RequestId("a0") not in turns
    assert take(turns, 3) == ["a1", "a2", "None"]


def test_keys_that_are_away_are_forgotten_in_the_end() -> None:
    turns = Turns()
    fill(turns, "always", 3000)
    for number in range(2000):
        turns.add(RequestId(str(number)), ("", f"key{number}"), inf, 1.0)
        take(turns, 2)
    assert turns.keys_count < 600


def test_an_owner_has_no_more_turns_by_naming_more_keys() -> None:
    turns = Turns()
    for key in "abcd":
        fill(turns, key, 9, owner="many")
    fill(turns, "x", 9, owner="one")
    counted = Counter(name[0] for name in take(turns, 16))
    assert counted["x"] == 8
    assert [counted[key] for key in "abcd"] == [2, 2, 2, 2]


def test_keys_of_one_name_are_each_owners_own() -> None:
    turns = Turns()
    turns.charge(("a", "k"), 100.0)
    for owner in ("a", "b"):
        turns.add(RequestId(owner), (owner, "k"), inf, 1.0)
    assert take(turns, 2) == ["b", "a"]


def test_who_waits_first_is_first_between_owners_that_are_even() -> None:
    turns = Turns()
    fill(turns, "b", 2, owner="z")
    fill(turns, "a", 2, owner="a")
    assert take(turns, 4) == ["b0", "a0", "b1", "a1"]


def test_owners_that_are_away_are_forgotten_in_the_end() -> None:
    turns = Turns()
    fill(turns, "always", 3000)
    for number in range(2000):
        turns.add(RequestId(str(number)), (f"owner{number}", "k"), inf, 1.0)
        take(turns, 2)
    assert turns.keys_count < 600
