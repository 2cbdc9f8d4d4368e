"""Decides whether what two arms did may be divided, and divides it; else says why not.

A ratio of two servers means something only if both did the same work: were asked the same, read
as many tokens of the prompt and of the cache, and gave the same answer. Samples are paired in the
order in which they were taken, turn by turn, and the requests of a pair of samples by their place.
"""

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bramley.bench.serve.record import LEFT, Arm, Request, Run, Sample

MACHINE_FACTS = ("cpu", "accelerator", "cores", "threads", "ram_bytes", "os")


class Rule(enum.StrEnum):
    """What must be the same before two samples of a metric are divided."""

    ANSWERS = "the same requests, counts and answers"
    STREAMS = "the same requests, and the same answers as far as both were read"
    REQUESTS = "the same requests"  # what a cache had is what is compared
    PHASES = "phases that both went through"  # memory
    NOTHING = "no requests"  # times of starting have no text that could be the same


# Of all other metrics the answers must be the same.
RULES = {
    "ready": Rule.NOTHING,
    "cold_start": Rule.REQUESTS,
    "restart_ready": Rule.NOTHING,
    "restart_cached": Rule.REQUESTS,
    "kill_served_again": Rule.NOTHING,
    "kill_cached": Rule.REQUESTS,
    "mixed_itl_p50": Rule.STREAMS,
    "mixed_itl_p99": Rule.STREAMS,
    "mixed_gap": Rule.STREAMS,
    "mixed_kept": Rule.STREAMS,
    "agent_cached": Rule.REQUESTS,
    "memory_idle_rss": Rule.NOTHING,
    "memory_idle_pss": Rule.NOTHING,
    "memory_peak_rss": Rule.PHASES,
    "memory_peak_pss": Rule.PHASES,
    "memory_phase_rss@": Rule.PHASES,
    "memory_model": Rule.PHASES,
}


def rule(metric: str) -> Rule:
    """Tell what must be the same; what follows an ``@`` in the metric's name changes nothing."""
    head, at, _ = metric.partition("@")
    return RULES.get(head + at, Rule.ANSWERS)


@dataclass(frozen=True, slots=True)
class Terms:
    """On which two samples are compared.

    Attributes:
        must: be the same.
        slack: tokens by which the cached ones of two requests may differ.
        shared: cached tokens of a prompt that is new all the same: all prompts begin with them.
    """

    must: Rule
    slack: int = 0
    shared: int = 0


class Why(enum.StrEnum):
    """Each kind of reason for which there is no ratio."""

    ABSENT = "not measured"
    COUNT = "numbers of samples differ"
    UNIT = "units differ"
    VALUE = "a value has no ratio"
    NO_REQUEST = "rests on no request"
    ERROR = "a request failed"
    PHASE = "a phase failed"
    PLACE = "places of requests differ"
    REQUEST = "requests differ"
    PROMPT = "prompt tokens differ"
    COMPLETION = "answers' tokens differ"
    CACHED = "cached tokens differ"
    UNTOLD = "a server does not tell"
    FINISH = "answers ended differently"
    TEXT = "answers' texts differ"
    SEED = "seeds differ"
    MACHINE = "machines differ"
    MODEL = "models differ"
    WORKLOAD = "workloads differ"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no ratio, for a program and for people; it quotes no answer."""

    kind: Why
    words: str


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of one run."""

    run: Run
    arm: Arm

    def samples(self, metric: str) -> list[Sample]:
        """Find those of a metric, the first turn's first."""
        found = (sample for sample in self.arm.samples if sample.metric == metric)
        return sorted(found, key=lambda sample: sample.turn)

    def requests(self, sample: Sample) -> list[Request]:
        """Find what a sample rests on, in the order of places, not of arrival."""
        return sorted((self.arm.requests[place] for place in sample.requests), key=_place)


def ratios(
    ours: Side, theirs: Side, metric: str, must: Rule | None = None, slack: int = 0
) -> list[float] | list[Reason]:
    """Divide one arm's samples by another's, pair by pair.

    Args:
        ours: above.
        theirs: below.
        metric: of the samples.
        must: be the same; without it, what `rule` says of the metric.
        slack: tokens by which the cached ones of a request may differ, beside those that all
            prompts of the runs begin with: of a prompt that is new a server has these, or none.

    Returns:
        One ratio a pair; or, if anything differs anywhere, each kind of difference once.
    """
    if different := list(_runs_differ(ours.run, theirs.run)):
        return different
    terms = Terms(must or rule(metric), slack, _shared(ours.run, theirs.run))
    mine, others = ours.samples(metric), theirs.samples(metric)
    if reason := _samples_differ(ours, theirs, metric):
        return [reason]
    if terms.must is Rule.PHASES and (reason := _phase_failed(ours, theirs, metric)):
        return [reason]
    pairs = list(zip(mine, others, strict=True))
    found = [
        reason
        for a, b in pairs
        if (reason := _values_differ(a, b) or _work_differs(ours, theirs, (a, b), terms))
    ]
    if found:
        return _each_once(found, len(pairs))
    return [a.value / b.value for a, b in pairs]


def _runs_differ(ours: Run, theirs: Run) -> Iterable[Reason]:
    """Look at what all arms of one run share.

    Yields:
        What two runs do not.
    """
    if ours.id == theirs.id:
        return
    if ours.seed != theirs.seed:
        yield Reason(Why.SEED, f"the runs have the seeds {ours.seed} and {theirs.seed}")
    if machine(ours) != machine(theirs):
        facts = [
            fact for fact in MACHINE_FACTS if ours.machine.get(fact) != theirs.machine.get(fact)
        ]
        yield Reason(Why.MACHINE, f"the runs are of two machines, which differ in {_and(facts)}")
    if not (ours.model.config_sha256 and theirs.model.config_sha256):
        yield Reason(Why.MODEL, "of one run it is not known which model was served")
    elif model(ours) != model(theirs):
        yield Reason(Why.MODEL, f"one run is of {ours.model.name}, one of {theirs.model.name}")
    if ours.workload != theirs.workload:
        keys = sorted(ours.workload.keys() | theirs.workload.keys())
        sizes = [key for key in keys if ours.workload.get(key) != theirs.workload.get(key)]
        yield Reason(Why.WORKLOAD, f"the runs' workloads differ in {_and(sizes)}")


def machine(run: Run) -> tuple[object, ...]:
    """Tell what makes two machines the same one, as far as speed goes."""
    return tuple(run.machine.get(fact) for fact in MACHINE_FACTS)


def model(run: Run) -> tuple[str, str]:
    """Tell what makes two models the same one; where they lie does not."""
    return run.model.name, run.model.config_sha256


def _samples_differ(ours: Side, theirs: Side, metric: str) -> Reason | None:
    mine, others = ours.samples(metric), theirs.samples(metric)
    for side, samples in ((ours, mine), (theirs, others)):
        if not samples:
            return Reason(Why.ABSENT, f"{side.arm.name} has no sample of it")
    if Counter(each.turn for each in mine) != Counter(each.turn for each in others):
        words = f"{len(mine)} samples of {ours.arm.name}, {len(others)} of {theirs.arm.name}"
        return Reason(Why.COUNT, words if len(mine) != len(others) else f"{words}, in other turns")
    return None


def _shared(*runs: Run) -> int:
    return min(run.shared_tokens or 0 for run in runs)


def _phase_failed(ours: Side, theirs: Side, metric: str) -> Reason | None:
    """Who gave up a phase has not done its work, and took less for it."""
    _, _, phase = metric.partition("@")
    for side in (ours, theirs):
        for failure in side.arm.failures:
            if failure.is_final and phase in {"", failure.phase}:
                return Reason(Why.PHASE, f"{side.arm.name} failed at {failure.phase}")
    return None


def _values_differ(ours: Sample, theirs: Sample) -> Reason | None:
    if ours.unit != theirs.unit:
        return Reason(Why.UNIT, f"one sample is in {ours.unit}, one in {theirs.unit}")
    for value in (ours.value, theirs.value):
        if not (math.isfinite(value) and value > 0):
            return Reason(Why.VALUE, f"a sample is {value:g}")
    return None


def _work_differs(
    ours: Side, theirs: Side, pair: tuple[Sample, Sample], terms: Terms
) -> Reason | None:
    if terms.must in {Rule.NOTHING, Rule.PHASES}:
        return None
    mine, others = ours.requests(pair[0]), theirs.requests(pair[1])
    if not mine or not others:
        return Reason(Why.NO_REQUEST, "a sample names no request that it rests on")
    if terms.must is Rule.STREAMS:  # until they are left they ask once more: some more than others
        mine, others = _in_both(mine, others), _in_both(others, mine)
    if len(mine) != len(others) or not mine:
        words = f"a sample rests on {len(mine)} requests, its pair on {len(others)}"
        return Reason(Why.PLACE, words)
    names = ours.arm.name, theirs.arm.name
    found = (mismatch(a, b, terms, names) for a, b in zip(mine, others, strict=True))
    return next((reason for reason in found if reason), None)


def _in_both(requests: Sequence[Request], others: Sequence[Request]) -> list[Request]:
    places = {_place(request) for request in others}
    return [request for request in requests if _place(request) in places]


def _place(request: Request) -> tuple[str, int, int]:
    return request.phase, request.attempt, request.index


def _cached(request: Request) -> int | None:
    return None if request.cached_tokens is None else sum(request.cached_tokens.values())


@dataclass(frozen=True, slots=True)
class _Fact:
    """What two requests must have in common, and how to say that they have not."""

    kind: Why
    name: str
    of: Callable[[Request], str | int | None]
    is_told: bool = True  # its two values

    def tell(self, values: tuple[str | int | None, str | int | None]) -> str:
        """Say that it differs."""
        return f"{self.name} differs" + (f": {values[0]} and {values[1]}" if self.is_told else "")


_ASKED = (
    _Fact(Why.PLACE, "phase, attempt and index", lambda one: " ".join(map(str, _place(one)))),
    _Fact(Why.REQUEST, "what was asked", lambda one: one.sha256, is_told=False),
    _Fact(Why.PROMPT, "the number of prompt tokens", lambda one: one.prompt_tokens),
)
_CACHED = _Fact(Why.CACHED, "the number of cached tokens", _cached)
_FACTS = {
    Rule.REQUESTS: _ASKED,
    Rule.STREAMS: (*_ASKED, _CACHED),
    Rule.ANSWERS: (
        *_ASKED,
        _CACHED,
        _Fact(Why.COMPLETION, "the number of answered tokens", lambda one: one.completion_tokens),
        _Fact(Why.FINISH, "why the answer ended", lambda one: one.finish),
    ),
}


def mismatch(ours: Request, theirs: Request, terms: Terms, names: tuple[str, str]) -> Reason | None:
    """Find the first thing in which two requests or their answers differ.

    Args:
        ours: of one arm.
        theirs: of the other one.
        terms: of the metric.
        names: of both arms.

    Returns:
        What differs; nothing if they may be compared.
    """
    for request, name in zip((ours, theirs), names, strict=True):
        if request.error is not None:
            return Reason(Why.ERROR, f"a request of {name} failed")
    for fact in _FACTS[terms.must]:
        told = fact.of(ours), fact.of(theirs)
        if None in told and terms.must is not Rule.ANSWERS:
            continue  # who left an answer was not told
        for value, name in zip(told, names, strict=True):
            if value is None:
                return Reason(Why.UNTOLD, f"{name} does not tell {fact.name}")
        if fact.kind is Why.CACHED and _are_near(told, terms):
            continue
        if told[0] != told[1]:
            return Reason(fact.kind, fact.tell(told))
    if terms.must is Rule.REQUESTS:
        return None
    is_left = terms.must is Rule.STREAMS and LEFT in {ours.finish, theirs.finish}
    return answer_differs(ours, theirs, as_far_as_read=is_left)


def _are_near(told: tuple[str | int | None, str | int | None], terms: Terms) -> bool:
    ours, theirs = told
    if not (isinstance(ours, int) and isinstance(theirs, int)):
        return False
    return abs(ours - theirs) <= terms.slack or max(ours, theirs) <= terms.shared


def answer_differs(
    ours: Request, theirs: Request, *, as_far_as_read: bool = False
) -> Reason | None:
    """Find where two answers' texts part; that one goes on may not count."""
    alike = zip(ours.text, theirs.text, strict=False)
    shorter = min(len(ours.text), len(theirs.text))
    at = next((place for place, (a, b) in enumerate(alike) if a != b), shorter)
    if at == shorter and (as_far_as_read or len(ours.text) == len(theirs.text)):
        return None
    return Reason(Why.TEXT, f"the answers differ from character {at} on")


def _each_once(reasons: Sequence[Reason], pairs: int) -> list[Reason]:
    """Keep the first of a kind, and say in how many pairs it was seen."""
    seen = Counter(reason.kind for reason in reasons)
    first = {reason.kind: reason for reason in reversed(reasons)}
    return [
        Reason(kind, f"{first[kind].words} ({count} of {pairs} pairs)")
        for kind, count in seen.items()
    ]


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
