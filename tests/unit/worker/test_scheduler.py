"""What the scheduler decides: each test is one rule of its docstring."""

from typing import Any

import pytest

from bramley.worker.cache.saved import Restore, Saving, StoredPart
from bramley.worker.engine.costs import OWED_MAX_S, Costs
from bramley.worker.engine.plan import Admission, Part
from bramley.worker.engine.scheduler import (
    ALONE_S,
    SHARED_S,
    SOON_S,
    Limits,
    admit,
    chunk_s,
    due_s,
    gather_s,
    schedule,
    share_of_decoding,
)
from bramley.worker.request import LogprobRule, Phase, Priority, Request, StopRule
from bramley.worker.sampling.params import SamplingParams

COSTS = Costs(forward_s=1 / 16, token_s=1 / 1024)  # 960 tokens in ALONE_S
LIMITS = Limits(chunk_tokens=2048)


def request(
    prompt: int, *, slot: int = -1, at_s: float = 0.0, restored: int = 0, **more: Any
) -> Request:
    part = StoredPart(0, restored, restored, memoryview(b""))
    return Request(
        id=f"p{prompt} at {at_s}",
        prompt=[1] * prompt,
        stop=StopRule(max_tokens=10),
        sampling=SamplingParams(),
        arrived_s=at_s,
        output=[2] * more.pop("outputs", 0),
        slot=slot,
        phase=Phase.SEATED if slot >= 0 else Phase.WAITING,
        restore=Restore((part,), lambda: True, lambda: None) if restored else None,
        **more,
    )


def plan(*seated: Request, owed_s: float = 0.0, limits: Limits = LIMITS) -> tuple[Part, ...]:
    costs = Costs(COSTS.forward_s, COSTS.token_s, owed_s)
    return schedule(seated, {one.slot: 0 for one in seated}, costs, limits)


def seats(*waiting: Request, seated: tuple[Request, ...] = (), free: int = 8) -> list[str]:
    return list(admit(seated, waiting, free, COSTS).seat)


def decoding() -> Request:
    return request(5, computed=5, slot=7, outputs=1)


def test_nobody_seated_is_nothing_to_do() -> None:
    assert plan() == ()


def test_ready_rows_decode() -> None:
    assert plan(request(5, computed=4, slot=3), request(1, slot=0)) == ()


def test_a_prompt_is_prefilled_down_to_its_last_token() -> None:
    assert plan(request(10, slot=0)) == (Part(0, 9),)
    assert plan(request(10, computed=9, slot=0)) == ()


def test_a_preempted_request_computes_its_own_output_again() -> None:
    assert plan(request(10, slot=0, outputs=4)) == (Part(0, 13),)


def test_alone_a_chunk_takes_a_second_at_most() -> None:
    assert COSTS.tokens(ALONE_S) == 960
    assert plan(request(5000, slot=0)) == (Part(0, 960),)


def test_beside_decoding_rows_a_chunk_takes_less_than_a_fifth_of_a_second() -> None:
    costs = Costs(forward_s=1 / 64, token_s=1 / 1024)
    assert costs.tokens(SHARED_S) == 168
    assert schedule([request(5000, slot=0), decoding()], {0: 0}, costs, LIMITS) == (Part(0, 160),)


@pytest.mark.parametrize(("forward_s", "taken_s"), [(0.01, 0.18), (0.05, 0.25), (0.2, 0.3)])
def test_or_a_few_forwards_where_they_are_slow(forward_s: float, taken_s: float) -> None:
    assert chunk_s(Costs(forward_s=forward_s), decode=True) == pytest.approx(taken_s)
    assert chunk_s(Costs(forward_s=forward_s), decode=False) == ALONE_S


def test_a_chunk_takes_the_few_tokens_that_would_need_another_forward() -> None:
    assert COSTS.tokens(ALONE_S + COSTS.forward_s) == 1024
    assert plan(request(1025, slot=0)) == (Part(0, 1024),)
    assert plan(request(1026, slot=0)) == (Part(0, 960),)
    assert plan(request(101, slot=0), limits=Limits(chunk_tokens=96)) == (Part(0, 96),)


def test_chunks_are_multiples_of_sixteen() -> None:
    assert plan(request(5000, slot=0), limits=Limits(chunk_tokens=100)) == (Part(0, 96),)
    assert plan(request(5000, slot=0), limits=Limits(chunk_tokens=5)) == (Part(0, 5),)


def test_after_a_chunk_decoding_gets_as_long_as_it_took() -> None:
    costs = Costs(COSTS.forward_s, COSTS.token_s)
    costs.prefilled(200, 0.25)
    seated = [request(5000, slot=0), decoding()]
    steps = 0
    while not schedule(seated, {0: 0, 7: 0}, costs, LIMITS):
        costs.decoded(0.06)
        steps += 1
    assert steps == 5


@pytest.mark.parametrize(
    ("filling", "decode", "share"),
    [(0, 3, 1.0), (1, 1, 1.0), (1, 8, 1.0), (2, 1, 0.5), (7, 1, 1 / 7)],
)
def test_those_who_decode_get_less_where_more_prompts_wait(
    filling: int, decode: int, share: float
) -> None:
    seated = [request(100, slot=slot) for slot in range(filling)]
    seated += [decoding() for _ in range(decode)]
    assert share_of_decoding(seated) == pytest.approx(share)


def test_a_prompt_that_is_soon_done_does_not_wait_for_what_is_owed() -> None:
    soon, long = request(500, slot=0), request(600, slot=0)
    assert COSTS.seconds(499) < SOON_S < COSTS.seconds(599)
    assert plan(soon, decoding(), owed_s=0.6)
    assert not plan(long, decoding(), owed_s=0.6)


def test_but_decoding_is_owed_a_second_at_most() -> None:
    soon = request(500, slot=0)
    taken_s = chunk_s(COSTS, decode=True)
    assert plan(soon, decoding(), owed_s=OWED_MAX_S - taken_s)
    assert not plan(soon, decoding(), owed_s=OWED_MAX_S - taken_s + 0.01)


def test_an_idle_engine_waits_for_company_a_small_share_of_what_a_prompt_takes() -> None:
    assert gather_s([], COSTS) == 0.0
    assert gather_s([request(1)], COSTS) == 0.0
    assert gather_s([request(101)], COSTS) == pytest.approx(COSTS.seconds(100) / 32)
    assert gather_s([request(2000, restored=1999)], COSTS) == 0.0
    assert gather_s([request(101), request(9000)], COSTS) == pytest.approx(0.02)


def test_what_is_owed_does_not_hold_up_a_prompt_that_is_alone() -> None:
    assert plan(request(5000, slot=0), owed_s=1.0)


def test_a_chunk_is_halved_until_its_attention_fits_the_workspace() -> None:
    wide = Limits(chunk_tokens=2048, heads=64)
    deep = request(200_000, computed=100_000, slot=0)
    (part,) = plan(deep, limits=wide)
    assert 64 * part.tokens * (100_000 + part.tokens) * 4 <= 1 << 30
    assert 64 * 4 * part.tokens * (100_000 + 4 * part.tokens) * 4 > 1 << 30


def test_a_chunk_pauses_where_a_state_must_be_copied() -> None:
    one = request(100, slot=0)
    one.saving = Saving(stage=lambda _: None, boundary=40, extent_blocks=1, pauses=True)
    assert plan(one) == (Part(0, 40),)
    one.computed = 40
    assert plan(one) == (Part(0, 59),)


def test_a_prompt_whose_logits_are_wanted_has_small_chunks_of_its_own() -> None:
    one, other = request(600, slot=0), request(600, slot=1)
    one.logprobs = LogprobRule(prompt=True)
    assert plan(one, other) == (Part(0, 256),)


def test_short_prompts_of_one_cohort_share_a_chunk() -> None:
    prompts = [request(length, slot=slot) for slot, length in enumerate((20, 33, 17, 30))]
    assert plan(*prompts) == (Part(2, 16), Part(0, 19), Part(3, 29), Part(1, 32))
    apart = schedule(prompts, {0: 0, 1: 1, 2: 0, 3: 1}, COSTS, LIMITS)
    assert [part.slot for part in apart] == [2, 0]


def test_long_prompts_are_prefilled_one_after_the_other() -> None:
    assert plan(request(1500, slot=0), request(1600, slot=1)) == (Part(0, 960),)


def test_rows_that_would_be_mostly_padding_do_not_share() -> None:
    assert plan(request(4, slot=0), request(900, slot=1)) == (Part(0, 3),)


def test_the_short_goes_before_the_long() -> None:
    long, short = request(2000, slot=0), request(20, slot=1, at_s=1.0)
    assert plan(long, short, decoding()) == (Part(1, 19),)


def test_but_not_for_ever() -> None:
    long, late = request(2000, slot=0), request(20, slot=1, at_s=2.5)
    assert plan(long, late, decoding())[0].slot == 0


def test_the_waiting_are_seated_in_order_of_their_due_times() -> None:
    assert seats(request(30), request(20), free=2) == ["p20 at 0.0", "p30 at 0.0"]
    assert seats(request(20, at_s=1.0), request(30), free=1) == ["p30 at 0.0"]


def test_a_cached_prompt_counts_by_what_is_left_of_it() -> None:
    cached = request(2000, restored=1990)
    assert seats(request(100), cached, free=1) == [cached.id]


@pytest.mark.parametrize("urgent", [Priority.SYSTEM, Priority.INTERACTIVE, Priority.DEFAULT])
def test_an_urgent_class_goes_first(urgent: Priority) -> None:
    bulk = request(10, priority=Priority.BULK)
    later = request(10, at_s=4.0, priority=urgent)
    assert seats(bulk, later, free=1) == [later.id]


def test_a_class_that_waited_long_enough_goes_first() -> None:
    bulk = request(10, priority=Priority.BULK)
    assert seats(bulk, request(10, at_s=56.0), free=1) == [bulk.id]


def test_nobody_is_seated_behind_a_long_prefill() -> None:
    long = request(4000, slot=0)
    assert seats(request(4000, at_s=1.0), seated=(long,)) == []
    assert seats(request(20, at_s=1.0), seated=(long,)) == ["p20 at 1.0"]


def test_a_prompt_of_one_token_is_seated_at_once() -> None:
    assert seats(request(1, at_s=9.0), seated=(request(4000, slot=0),)) == ["p1 at 9.0"]


def test_those_who_can_share_a_chunk_are_seated_together() -> None:
    assert len(seats(*[request(500, at_s=n) for n in range(6)])) == 4


def test_no_more_are_seated_than_there_are_seats() -> None:
    assert len(seats(*[request(1)] * 5, free=2)) == 2


def test_a_follower_waits_for_its_leader_s_prompt() -> None:
    leader = request(100)
    follower = request(100, leader=leader)
    assert seats(leader, follower) == [leader.id]
    leader.phase, leader.slot, leader.computed = Phase.SEATED, 0, 40
    assert seats(follower, seated=(leader,)) == []
    leader.computed = 99
    assert seats(follower, seated=(leader,)) == [follower.id]
    leader.phase = Phase.ENDED
    assert seats(follower) == [follower.id]


def test_the_newest_bulk_request_gives_its_seat_to_an_urgent_one() -> None:
    old = request(5, computed=5, slot=3, outputs=1, priority=Priority.BULK)
    new = request(5, computed=5, slot=4, outputs=1, priority=Priority.BULK, at_s=1.0)
    urgent = request(10, at_s=2.0)
    assert admit([old, new], [urgent], 0, COSTS) == Admission((4,), (urgent.id,))
    assert admit([old, new], [urgent], 1, COSTS) == Admission((), (urgent.id,))


def test_bulk_does_not_preempt_bulk_and_nobody_preempts_one_that_is_due_earlier() -> None:
    bulk = request(5, computed=5, slot=4, outputs=1, priority=Priority.BULK)
    other = request(10, at_s=1.0, priority=Priority.BULK)
    assert admit([bulk], [other], 0, COSTS) == Admission()
    late = request(10, at_s=58.0)
    assert due_s(bulk, COSTS) < due_s(late, COSTS)
    assert admit([bulk], [late], 0, COSTS) == Admission()
