"""Two arms' samples are divided only where both did the same work; each difference has its name."""

from collections.abc import Callable
from typing import Any

import pytest

from bramley.bench.serve.compare import RULES, Reason, Rule, Side, Why, ratios, rule
from bramley.bench.serve.metrics import METRICS
from bramley.bench.serve.record import LEFT, Arm, Model, Request, Run, Sample
from support.runs import OURS, PEER, ArmBuilder, run

METRIC = "decode"


def arms() -> tuple[ArmBuilder, ArmBuilder]:
    return (
        ArmBuilder(OURS).add("decode", METRIC, "tok/s", 20.0, 30.0),
        ArmBuilder(PEER).add("decode", METRIC, "tok/s", 10.0, 20.0),
    )


def compared(ours: Run, theirs: Run | None = None, must: Rule | None = None) -> list[Any]:
    theirs = theirs or ours
    return ratios(Side(ours, ours.arms[0]), Side(theirs, theirs.arms[-1]), METRIC, must)


def test_equal_work_is_divided_pair_by_pair() -> None:
    assert compared(run(*arms())) == [2.0, 1.5]


def set_to(field: str, value: object) -> Callable[[Request], None]:
    return lambda request: setattr(request, field, value)


DIFFERENCES: dict[str, tuple[Why, Callable[[Request], None]]] = {
    "another prompt": (Why.REQUEST, set_to("sha256", "0" * 64)),
    "another phase": (Why.PLACE, set_to("phase", "context")),
    "another attempt": (Why.PLACE, set_to("attempt", 2)),
    "another index": (Why.PLACE, set_to("index", 7)),
    "more prompt tokens": (Why.PROMPT, set_to("prompt_tokens", 601)),
    "fewer answered tokens": (Why.COMPLETION, set_to("completion_tokens", 9)),
    "more cached tokens": (Why.CACHED, set_to("cached_tokens", {"ram": 512})),
    "no word of the cache": (Why.UNTOLD, set_to("cached_tokens", None)),
    "no word of the prompt's tokens": (Why.UNTOLD, set_to("prompt_tokens", None)),
    "no word of the answer's tokens": (Why.UNTOLD, set_to("completion_tokens", None)),
    "no word of its end": (Why.UNTOLD, set_to("finish", None)),
    "another end": (Why.FINISH, set_to("finish", "stop")),
    "another answer": (Why.TEXT, set_to("text", "The answer is another.")),
    "an error": (Why.ERROR, set_to("error", "503")),
}


@pytest.mark.parametrize(("why", "change"), DIFFERENCES.values(), ids=DIFFERENCES)
@pytest.mark.parametrize("side", [0, 1])
def test_one_different_request_suppresses_the_ratio(
    why: Why, change: Callable[[Request], None], side: int
) -> None:
    made = run(*arms())
    change(made.arms[side].requests[1])
    (reason,) = compared(made)
    assert reason.kind is why
    assert reason.words.endswith("(1 of 2 pairs)")


def _shorter(arm: Arm) -> None:
    arm.samples.pop()


def _other_turn(arm: Arm) -> None:
    arm.samples[1].turn = 1


def _other_unit(arm: Arm) -> None:
    arm.samples[0].unit = "tok/min"


def _nothing(arm: Arm) -> None:
    arm.samples.clear()


def _more_requests(arm: Arm) -> None:
    arm.samples[0].requests = [0, 1]


def _no_request(arm: Arm) -> None:
    arm.samples[0].requests = []


def _zero(arm: Arm) -> None:
    arm.samples[0].value = 0.0


def _endless(arm: Arm) -> None:
    arm.samples[0].value = float("inf")


SAMPLES: dict[str, tuple[Why, Callable[[Arm], None]]] = {
    "fewer": (Why.COUNT, _shorter),
    "in another turn": (Why.COUNT, _other_turn),
    "in another unit": (Why.UNIT, _other_unit),
    "none": (Why.ABSENT, _nothing),
    "of more requests": (Why.PLACE, _more_requests),
    "of no request": (Why.NO_REQUEST, _no_request),
    "of nothing": (Why.VALUE, _zero),
    "without an end": (Why.VALUE, _endless),
}


@pytest.mark.parametrize(("why", "change"), SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("side", [0, 1])
def test_samples_that_are_no_pairs_suppress_the_ratio(
    why: Why, change: Callable[[Arm], None], side: int
) -> None:
    made = run(*arms())
    change(made.arms[side])
    (reason,) = compared(made)
    assert reason.kind is why


RUNS: dict[str, tuple[Why, dict[str, Any]]] = {
    "another seed": (Why.SEED, {"seed": 2}),
    "another machine": (Why.MACHINE, {"machine": {"cpu": "Other", "cores": 64}}),
    "another model": (Why.MODEL, {"model": Model(name="tiny", config_sha256="0" * 64)}),
    "a model of another name": (Why.MODEL, {"model": Model(name="big", config_sha256="f" * 64)}),
    "a model unknown": (Why.MODEL, {"model": Model(name="tiny")}),
    "another workload": (Why.WORKLOAD, {"workload": {"decode_tokens": 64}}),
}


@pytest.mark.parametrize(("why", "facts"), RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("must", Rule)
def test_runs_of_two_files_must_be_of_one_kind_whatever_the_metric(
    why: Why, facts: dict[str, Any], must: Rule
) -> None:
    ours, theirs = arms()
    (reason,) = compared(run(ours), run(theirs, id="other", **facts), must)
    assert reason.kind is why


def test_two_files_of_one_kind_are_compared_like_one() -> None:
    ours, theirs = arms()
    assert compared(run(ours), run(theirs, id="other")) == [2.0, 1.5]


def test_where_the_model_lies_makes_it_no_other() -> None:
    ours, theirs = arms()
    moved = Model(name="tiny", path="/elsewhere/tiny", config_sha256="f" * 64)
    assert compared(run(ours), run(theirs, id="other", model=moved)) == [2.0, 1.5]


def test_tiers_that_add_up_to_the_same_are_the_same() -> None:
    made = run(*arms())
    for one in made.arms[0].requests:
        one.cached_tokens = {"parked": 100, "ram": 412}
    for one in made.arms[1].requests:
        one.cached_tokens = {"any": 512}
    assert compared(made) == [2.0, 1.5]


@pytest.mark.parametrize(("slack", "is_divided"), [(0, False), (6, False), (7, True)])
def test_cached_tokens_may_differ_by_a_slack_that_is_asked_for(
    slack: int, is_divided: bool
) -> None:
    made = run(*arms())
    for one in made.arms[1].requests:
        one.cached_tokens = {"any": 7}
    ours, theirs = (Side(made, arm) for arm in made.arms)
    for a, b in ((ours, theirs), (theirs, ours)):
        found = ratios(a, b, METRIC, slack=slack)
        assert all(isinstance(one, float) for one in found) is is_divided


def test_a_slack_makes_no_cache_that_is_not_told_a_known_one() -> None:
    made = run(*arms())
    made.arms[0].requests[0].cached_tokens = None
    found = ratios(Side(made, made.arms[0]), Side(made, made.arms[1]), METRIC, slack=1000)
    assert [one.kind for one in found if isinstance(one, Reason)] == [Why.UNTOLD]


def test_of_streams_that_ask_until_they_are_left_those_that_both_asked_count() -> None:
    ours, theirs = arms()
    for arm, rests in ((ours.arm, [0, 1]), (theirs.arm, [0])):
        arm.samples = [Sample(metric=METRIC, unit="tok/s", value=4.0, requests=rests)]
    assert compared(run(ours, theirs), must=Rule.STREAMS) == [1.0]
    (reason,) = compared(run(ours, theirs))
    assert reason.kind is Why.PLACE


def left(text: str) -> Run:
    """A run in which our first answer was read so far."""
    made = run(*arms())
    ours = made.arms[0].requests[0]
    ours.prompt_tokens = ours.completion_tokens = ours.cached_tokens = None
    ours.finish, ours.text = LEFT, text
    return made


def test_of_a_stream_that_was_left_counts_need_not_be_told() -> None:
    assert compared(left("The answer"), must=Rule.STREAMS) == [2.0, 1.5]


def test_streams_must_answer_alike_as_far_as_both_were_read() -> None:
    (reason,) = compared(left("The ants"), must=Rule.STREAMS)
    assert reason.kind is Why.TEXT
    ended = left("The answer")
    ended.arms[0].requests[0].finish = "length"
    assert [one.kind for one in compared(ended, must=Rule.STREAMS)] == [Why.TEXT]


@pytest.mark.parametrize(
    ("cached", "shared", "is_divided"),
    [
        ((0, 24), 24, True),
        ((24, 25), 25, True),
        ((0, 25), 24, False),
        ((0, 24), None, False),
        ((512, 536), 24, False),  # of a prompt that both had, one had more
        ((0, 599), 24, False),
    ],
)
def test_a_head_that_all_prompts_share_is_no_cache_but_what_is_more_is(
    cached: tuple[int, int], shared: int | None, is_divided: bool
) -> None:
    made = run(*arms(), shared_tokens=shared)
    for arm, tokens in zip(made.arms, cached, strict=True):
        for one in arm.requests:
            one.cached_tokens = {"any": tokens}
    assert (compared(made) == [2.0, 1.5]) is is_divided


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("metric", "phase", "is_divided"),
    [
        ("memory_peak_rss", "context", False),
        ("memory_phase_rss@context", "context", False),
        ("memory_phase_rss@context", "kill", True),
        ("memory_idle_rss", "context", True),
    ],
)
def test_memory_of_a_server_that_gave_up_is_not_divided(
    metric: str, phase: str, is_divided: bool, side: int
) -> None:
    sides = (ArmBuilder(OURS).also(metric, "bytes", 2.0), ArmBuilder(PEER).also(metric, "bytes", 4))
    sides[side].fail(phase, "no memory")
    made = run(*sides)
    found = ratios(Side(made, made.arms[0]), Side(made, made.arms[1]), metric)
    assert (found == [0.5]) is is_divided
    if not is_divided:
        assert [one.kind for one in found if isinstance(one, Reason)] == [Why.PHASE]


def test_what_holds_no_text_is_divided_without_it() -> None:
    ours, theirs = ArmBuilder(OURS), ArmBuilder(PEER)
    ours.also(METRIC, "s", 1.0)
    theirs.also(METRIC, "s", 2.0)
    assert compared(run(ours, theirs), must=Rule.NOTHING) == [0.5]


@pytest.mark.parametrize("name", ["another answer", "fewer answered tokens", "no word of its end"])
def test_a_rule_of_requests_minds_no_answer(name: str) -> None:
    made = run(*arms())
    DIFFERENCES[name][1](made.arms[0].requests[0])
    assert compared(made, must=Rule.REQUESTS) == [2.0, 1.5]


@pytest.mark.parametrize("name", ["another prompt", "more prompt tokens", "an error"])
def test_a_rule_of_requests_minds_what_was_asked(name: str) -> None:
    made = run(*arms())
    DIFFERENCES[name][1](made.arms[0].requests[0])
    (reason,) = compared(made, must=Rule.REQUESTS)
    assert isinstance(reason, Reason)


def test_requests_of_a_sample_are_paired_by_place_and_not_by_arrival() -> None:
    ours, theirs = arms()
    for arm, rests in ((ours.arm, [0, 1]), (theirs.arm, [1, 0])):
        arm.samples = [Sample(metric=METRIC, unit="tok/s", value=4.0, requests=rests)]
    assert compared(run(ours, theirs)) == [1.0]


def test_each_kind_of_difference_is_told_once_and_how_often() -> None:
    made = run(*arms())
    for one in made.arms[0].requests:
        one.text = "Something else."
    (reason,) = compared(made)
    assert reason == Reason(Why.TEXT, "the answers differ from character 0 on (2 of 2 pairs)")


def test_an_answer_that_goes_on_differs_where_the_other_ends() -> None:
    made = run(*arms())
    ours = made.arms[0].requests[0]
    length = len(ours.text)
    ours.text += " And more."
    (reason,) = compared(made)
    assert f"from character {length} on" in reason.words


def test_no_reason_quotes_an_answer() -> None:
    made = run(*arms())
    for one in made.arms[0].requests:
        one.text = one.sha256 = "secret words"
    assert not any("secret" in reason.words for reason in compared(made))


def test_every_rule_is_of_a_metric() -> None:
    assert RULES.keys() <= METRICS.keys()


def test_a_metric_of_a_number_of_streams_has_the_rule_of_them_all() -> None:
    assert rule("memory_phase_rss@decode") is Rule.PHASES
    assert rule("aggregate_rate@4") is Rule.ANSWERS
