"""A worker that fails is left alone for a while, then tried by one request."""

from bramley.router.breaker import FAILURES_MAX, OPEN_MAX_S, OPEN_MIN_S, Breaker


def broken(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_MAX):
        breaker.failed(now_s, is_probe=False)
    return breaker


def test_it_opens_after_so_many_failures_running() -> None:
    breaker = Breaker()
    for _ in range(FAILURES_MAX - 1):
        breaker.failed(0.0, is_probe=False)
    assert breaker.state(0.0) == "closed"
    breaker.succeeded()
    breaker.failed(0.0, is_probe=False)
    assert breaker.state(0.0) == "closed"
    assert broken().state(OPEN_MIN_S / 2) == "open"


def test_one_probe_closes_it_or_opens_it_for_twice_as_long() -> None:
    breaker = broken()
    assert breaker.state(OPEN_MIN_S) == "half_open"
    assert breaker.sent(OPEN_MIN_S)
    assert breaker.state(OPEN_MIN_S) == "open"  # one probe, not two
    breaker.failed(OPEN_MIN_S, is_probe=True)
    assert breaker.state(OPEN_MIN_S * 2.9) == "open"
    assert breaker.state(OPEN_MIN_S * 3) == "half_open"
    breaker.sent(OPEN_MIN_S * 3)
    breaker.succeeded()
    assert breaker.state(OPEN_MIN_S * 3) == "closed"


def test_a_probe_that_told_nothing_is_followed_by_another() -> None:
    breaker = broken()
    breaker.sent(OPEN_MIN_S)
    breaker.probe_left()
    assert breaker.state(OPEN_MIN_S) == "half_open"


def test_requests_that_were_there_before_leave_the_probe_and_the_wait_as_they_are() -> None:
    breaker = broken()
    for _ in range(5):
        breaker.failed(0.0, is_probe=False)
    assert breaker.state(OPEN_MIN_S) == "half_open"
    assert breaker.sent(OPEN_MIN_S)
    breaker.failed(OPEN_MIN_S, is_probe=False)
    assert not breaker.sent(OPEN_MIN_S)  # one for which there is no other worker
    assert breaker.state(OPEN_MIN_S * 1.5) == "open"  # the probe is still there


def test_it_never_waits_longer_than_the_most() -> None:
    breaker, now_s = broken(), 0.0
    for _ in range(20):
        now_s += OPEN_MAX_S
        breaker.sent(now_s)
        breaker.failed(now_s, is_probe=True)
    assert breaker.state(now_s + OPEN_MAX_S) == "half_open"
    assert breaker.state(now_s + OPEN_MAX_S - 0.1) == "open"
