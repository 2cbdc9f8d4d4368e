"""Seats are given once and come back."""

import pytest

from bramley.worker.engine.slots import Slots
from bramley.worker.request import Phase, Request, StopRule
from bramley.worker.sampling.params import SamplingParams


def request(name: str) -> Request:
    return Request(id=name, prompt=[1], stop=StopRule(max_tokens=1), sampling=SamplingParams())


def test_a_seat_is_given_to_one_request_at_a_time_and_comes_back() -> None:
    slots = Slots(2)
    first, second = request("a"), request("b")
    assert {slots.seat(first), slots.seat(second)} == {0, 1}
    assert slots.free == 0
    assert slots[first.slot] is first
    slots.leave(first)
    assert (slots.free, first.slot) == (1, -1)
    assert slots.seated == [second]
    slots.check()


def test_a_parked_row_keeps_its_seat_until_it_is_resumed_or_cleared() -> None:
    slots = Slots(2)
    first, second = request("a"), request("b")
    for one in (first, second):
        slots.seat(one)
        one.output, one.computed = [5, 6], 2
        slots.park(one)
    assert [(row.slot, row.tokens) for row in slots.parked] == [(0, [1, 5]), (1, [1, 5])]
    assert slots.free == 0
    again = request("c")
    assert slots.resume(again, 1).slot == again.slot == 1
    slots.clear(0)
    assert (slots.free, slots.parked, slots.seated) == (1, [], [again])
    slots.check()


def test_a_lost_seat_is_noticed() -> None:
    slots = Slots(2)
    slots.seat(request("a"))
    slots._free.clear()  # pyright: ignore[reportPrivateUsage] the fault to be noticed
    with pytest.raises(AssertionError, match="1 seated, 0 parked, 0 free"):
        slots.check()


def test_a_request_cannot_come_back_to_life() -> None:
    ended = request("a")
    ended.enter(Phase.ENDED)
    with pytest.raises(AssertionError):
        ended.enter(Phase.SEATED)
