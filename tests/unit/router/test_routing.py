"""Which worker a request goes to, and why."""

from typing import Any

from bramley.router.prefixes import Stored
from bramley.router.routing import Choice, Replica, choose


def chosen(*replicas: Replica, prompt_tokens: int = 1000) -> tuple[str, str]:
    choice = choose(replicas, prompt_tokens)
    assert isinstance(choice, Choice)
    return choice.replica.name, choice.why


def replica(name: str, **fields: Any) -> Replica:
    if "requests" in fields:
        fields.setdefault("booked", fields["requests"])
    return Replica(name=name, **fields)


def test_without_a_worker_there_is_no_choice() -> None:
    assert choose([], 10) is None


def test_one_worker_is_taken_as_long_as_it_has_a_place() -> None:
    assert chosen(replica("a", places=2, requests=1)) == ("a", "only")
    assert choose([replica("a", places=2, requests=2)], 10) is None


def test_reports_that_lag_fill_no_place() -> None:
    assert chosen(replica("a", places=2, booked=0, requests=2)) == ("a", "only")


def test_the_least_loaded_one_is_first_and_then_the_one_used_longest_ago() -> None:
    assert chosen(replica("a", requests=1), replica("b")) == ("b", "load")
    a, b = replica("a", last_used=2), replica("b", last_used=1)
    assert chosen(a, b) == ("b", "load")


def test_a_prompt_goes_where_its_row_is() -> None:
    a, b = replica("a", requests=1, row_tokens=768), replica("b")
    assert chosen(a, b) == ("a", "prefix")


def test_a_stored_prefix_is_nearly_as_good_as_a_row() -> None:
    stored = replica("a", stored=Stored(ram=768))
    assert chosen(stored, replica("b", row_tokens=512)) == ("a", "prefix")
    assert chosen(stored, replica("b", row_tokens=768)) == ("b", "prefix")
    on_disk = replica("b", stored=Stored(ssd=768))
    assert chosen(stored, on_disk) == ("a", "prefix")


def test_what_waits_there_counts_as_seconds() -> None:
    a, b = replica("a", prefill_tokens=4000, row_tokens=768), replica("b")
    assert chosen(a, b) == ("b", "spill")
    slow = replica("a", prefill_rate=100.0)
    assert chosen(slow, replica("b", prefill_rate=1000.0, prefill_tokens=2000)) == ("b", "load")


def test_a_short_prefix_draws_few_requests_and_a_long_one_many() -> None:
    def drawn(row_tokens: int) -> int:
        """How many requests go to the worker with the prefix before one goes elsewhere."""
        for requests in range(8):
            busy = replica("a", requests=requests, row_tokens=row_tokens)
            if chosen(busy, replica("b"), prompt_tokens=2000)[0] == "b":
                return requests
        return 8

    assert [drawn(256 * blocks) for blocks in range(5)] == [1, 7, 8, 8, 8]
    fast = replica("a", requests=3, row_tokens=256, prefill_rate=10_000.0)
    assert chosen(fast, replica("b", prefill_rate=10_000.0)) == ("b", "spill")


def test_a_worker_that_fails_is_left_alone_unless_it_is_the_last() -> None:
    broken = replica("a", breaker="open", row_tokens=768)
    assert chosen(broken, replica("b", requests=2)) == ("b", "only")
    assert choose([broken, replica("b", places=1, requests=1)], 10) is None
    assert chosen(broken) == ("a", "last")
    assert chosen(broken, replica("b", breaker="open", requests=1)) == ("a", "last")


def test_a_worker_that_failed_gets_one_probe_when_its_time_has_come() -> None:
    assert chosen(replica("a"), replica("b", breaker="half_open")) == ("b", "probe")
