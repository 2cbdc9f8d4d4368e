"""What the scheduler decides: each test is one rule of its docstring."""

from bramley.worker.engine.plan import Chunk, StepPlan
from bramley.worker.engine.scheduler import schedule
from bramley.worker.request import Phase, Request, StopRule
from bramley.worker.sampling.params import SamplingParams


def request(prompt: int, *, computed: int = 0, slot: int = -1, outputs: int = 0) -> Request:
    return Request(
        id=f"r{slot}",
        prompt=[1] * prompt,
        stop=StopRule(max_tokens=10),
        sampling=SamplingParams(),
        computed=computed,
        output=[2] * outputs,
        slot=slot,
        phase=Phase.SEATED if slot >= 0 else Phase.WAITING,
    )


def plan(
    seated: list[Request], waiting: list[Request] | None = None, *, free: int = 8, chunk: int = 16
) -> StepPlan:
    return schedule(seated, waiting or [], free, chunk)


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan([]).is_empty


def test_every_ready_row_decodes() -> None:
    seated = [request(5, computed=4, slot=3), request(1, slot=0), request(4, computed=6, slot=1)]
    assert plan(seated) == StepPlan(decode=(3, 0, 1))


def test_a_prompt_is_prefilled_down_to_its_last_token() -> None:
    assert plan([request(10, slot=0)]).chunk == Chunk(0, 9)
    assert plan([request(10, computed=9, slot=0)]) == StepPlan(decode=(0,))


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    assert plan([request(100, slot=0)]).chunk == Chunk(0, 16)
    assert plan([request(100, computed=96, slot=0)]).chunk == Chunk(0, 3)


def test_decoding_goes_on_beside_a_prefill() -> None:
    seated = [request(3, computed=2, slot=0), request(100, slot=1)]
    assert plan(seated) == StepPlan(chunk=Chunk(1, 16), decode=(0,))


def test_the_oldest_prompt_is_prefilled_first() -> None:
    assert plan([request(50, slot=4), request(9, slot=2)]).chunk == Chunk(4, 16)


def test_nobody_is_seated_while_a_prompt_is_prefilled() -> None:
    assert plan([request(50, slot=0)], [request(5)]).admit == 0


def test_the_next_in_line_is_seated_one_prefill_at_a_time() -> None:
    assert plan([], [request(5), request(5)]).admit == 1
    assert plan([], [request(1), request(1), request(5), request(5)]).admit == 3


def test_no_more_are_seated_than_seats_are_free() -> None:
    assert plan([], [request(1)] * 5, free=2).admit == 2
    assert plan([request(2, computed=1, slot=0)], [request(1)], free=0).admit == 0
