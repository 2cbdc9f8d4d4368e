"""One client's limits are not another's, and sums return to zero."""

import pytest

from bramley.router.clients import ClientLimits, Clients, TooMany


def test_without_limits_anybody_may_ask_anything() -> None:
    clients, limits = Clients(), ClientLimits()
    assert [clients.enter("a", 0.0, limits) for _ in range(1000)] == [None] * 1000
    for _ in range(1000):
        clients.leave("a")
    assert len(clients) == 0


def test_each_client_has_so_many_at_once() -> None:
    clients, limits = Clients(), ClientLimits(requests_max=2)
    assert clients.enter("a", 0.0, limits) is None
    assert clients.enter("a", 0.0, limits) is None
    assert clients.enter("a", 0.0, limits) == TooMany("CLIENT_CONCURRENCY", 2, 1.0)
    assert clients.enter("b", 0.0, limits) is None
    clients.leave("a")
    assert clients.enter("a", 0.0, limits) is None


def test_a_rate_allows_a_minute_s_worth_at_once_and_then_one_each_interval() -> None:
    clients, limits = Clients(), ClientLimits(requests_per_minute=6)
    assert [clients.enter("a", 100.0, limits) for _ in range(6)] == [None] * 6
    refused = clients.enter("a", 100.0, limits)
    assert isinstance(refused, TooMany)
    assert (refused.reason, refused.limit) == ("CLIENT_RATE", 6)
    assert refused.retry_after_s == pytest.approx(10.0)
    assert clients.enter("b", 100.0, limits) is None
    assert clients.enter("a", 110.0, limits) is None
    assert clients.enter("a", 110.0, limits) is not None
    assert [clients.enter("a", 200.0, limits) for _ in range(6)] == [None] * 6


def test_clients_that_are_within_their_rate_are_forgotten() -> None:
    clients, limits = Clients(), ClientLimits(requests_per_minute=60)
    for number in range(10_000):
        now_s = float(number)
        assert clients.enter(str(number), now_s, limits) is None
        clients.leave(str(number))
    assert len(clients) < 5000


def test_one_client_may_have_limits_of_its_own() -> None:
    clients = Clients()
    usual, own = ClientLimits(requests_max=1), ClientLimits(requests_max=2)
    assert [clients.enter("a", 0.0, own) for _ in range(2)] == [None] * 2
    assert clients.enter("a", 0.0, own) == TooMany("CLIENT_CONCURRENCY", 2, 1.0)
    assert clients.enter("b", 0.0, usual) is None
    assert clients.enter("b", 0.0, usual) is not None
