"""What an object is worth, and when a failed disk is tried again."""

import pytest

from bramley.cachestore.catalogue import Entry
from bramley.cachestore.policy import (
    BREAKER_MAX_S,
    DEPTH_TOKENS,
    HALF_LIFE_S,
    HITS_MAX,
    STATE_TOKENS,
    Breaker,
    hits_after,
    worth,
)
from bramley.cachestore.settings import StoreSettings, disk_budget, ram_budget
from support.objects import entry
from support.store import ids

GB = 1 << 30


def value(one: Entry, prefill_rate: float = 1000.0) -> float:
    return worth(one.object, prefill_rate)


def test_an_object_is_worth_the_seconds_for_each_mib_that_computing_it_takes() -> None:
    one = entry(ids(256))  # a part of 100 bytes takes 16 KiB
    assert value(one) == pytest.approx(0.256 * 64)
    assert value(entry(ids(512))) == pytest.approx(value(one))


def test_slow_models_and_deep_objects_are_worth_more() -> None:
    shallow, deep = entry(ids(256)), entry(ids(DEPTH_TOKENS + 256), DEPTH_TOKENS // 256)
    assert value(deep) == pytest.approx(2 * value(shallow))
    assert value(shallow, 100.0) == pytest.approx(10 * value(shallow))


def test_a_state_is_worth_what_lies_between_it_and_the_one_before() -> None:
    def state(tokens: int) -> float:
        return value(entry(ids(tokens), tokens // 256, kind="state", group="state"))

    assert state(300) == pytest.approx(0.3 * 64)
    assert state(STATE_TOKENS) == pytest.approx(2.048 * 64)
    assert state(2 * STATE_TOKENS) == pytest.approx(2.048 * 64 * (1 + 2048 / DEPTH_TOKENS))


def test_uses_count_half_after_an_hour_and_only_so_many() -> None:
    assert hits_after(0.0, 5.0) == 1.0
    assert hits_after(1.0, 0.0) == 2.0
    assert hits_after(4.0, 0.0) == 5.0
    assert hits_after(4.0, HALF_LIFE_S) == 3.0
    assert hits_after(HITS_MAX, 0.0) == HITS_MAX


def test_a_breaker_waits_twice_as_long_each_time() -> None:
    breaker = Breaker()
    assert not breaker.has_tripped
    waits: list[float] = []
    for _ in range(9):
        breaker.trip(100.0, is_full=False)
        waits.append(breaker.remaining_s(100.0))
    assert waits == [5, 10, 20, 40, 80, 160, BREAKER_MAX_S, BREAKER_MAX_S, BREAKER_MAX_S]
    assert breaker.remaining_s(399.0) == 1.0
    assert breaker.remaining_s(500.0) == 0.0
    assert breaker.has_tripped
    breaker.close()
    assert not breaker.has_tripped
    breaker.trip(0.0, is_full=True)
    assert breaker.is_full
    assert breaker.remaining_s(0.0) == 5.0


def test_tiers_take_a_tenth_within_bounds_unless_told() -> None:
    usual = StoreSettings()
    assert ram_budget(usual, 4 * GB) == GB
    assert ram_budget(usual, 64 * GB) == 64 * GB // 10
    assert ram_budget(usual, 512 * GB) == 16 * GB
    assert ram_budget(StoreSettings(ram_bytes=5), 64 * GB) == 5
    assert disk_budget(usual, 200 * GB) == 20 * GB
    assert disk_budget(usual, 4000 * GB) == 100 * GB
    assert disk_budget(StoreSettings(disk_bytes=7), GB) == 7
