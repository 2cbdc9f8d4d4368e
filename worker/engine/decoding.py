"""Decode steps of one cohort, pipelined: the next is launched before the last one is read.

A *flight* is a step that was launched and not read. The device computes it while the host hands
out what the one before gave. Tokens go from one flight to the next without the host seeing them;
it reads all rows' tokens at once. A row that turns out to have ended flew once for nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.replay import Replay
from bramley.worker.grammar import masks
from bramley.worker.grammar.guide import Guide
from bramley.worker.request import Phase, Request, TokenLogprob
from bramley.worker.sampling.sampler import RowRule, RowSampler, Sampled


@dataclass(slots=True, eq=False)
class Flight:
    """One launched step.

    Attributes:
        requests: one a row, in order.
        logits: (B, V), while the draw waits for the tokens before it.
        sampled: what was drawn, not evaluated.
    """

    requests: tuple[Request, ...]
    logits: mx.array | None
    sampled: Sampled | None

    @property
    def is_awaited(self) -> bool:
        """Whether it must be read before the next launch.

        A first token is not held back by another step, and a row that ends by its limit is not
        computed once more.
        """
        return any(
            not request.output or len(request.output) + 1 >= request.stop.max_tokens
            for request in self.requests
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a flight gave one request; a broken row's logits were not numbers."""

    request: Request
    token: int
    is_broken: bool
    logprob: TokenLogprob | None


class Decoder:
    """Launches and reads the decode steps of one cohort."""

    def __init__(self, forward: Replay, cohort: Cohort) -> None:
        self._forward = forward
        self.cohort = cohort
        self._order: tuple[Request, ...] = ()
        self._sampler: RowSampler
        self.flight: Flight | None = None

    def launch(self, requests: Sequence[Request]) -> Flight | None:
        """Start a step of the cohort's decoding rows.

        A forward that raises leaves every length as it was (law 12 of the state contract).

        Args:
            requests: of the decoding rows, in order.

        Returns:
            The flight before, still to be read.
        """
        before, order = self.flight, tuple(requests)
        logits = self._forward(self.cohort, len(order), _inputs(order, before))
        if order != self._order:
            self._order, self._sampler = order, RowSampler([_rule(one) for one in order])
        flight = Flight(order, logits, None)
        if self._sampler.needs_history or any(map(_binds_soon, order)):
            mx.async_eval(logits)
        else:
            unread = set(before.requests) if before is not None else set[Request]()
            self._draw(flight, [one.next_position + (one in unread) for one in order])
        self.cohort.table.commit()
        for request in order:
            request.computed += 1
        self.flight = flight
        return before

    def draw(self) -> None:
        """Draw what had to wait for the tokens before it; the flight before has been read."""
        flight = self.flight
        if flight is not None and flight.sampled is None:
            self._draw(flight, [one.next_position for one in flight.requests])

    def _draw(self, flight: Flight, positions: Sequence[int]) -> None:
        assert flight.logits is not None
        histories = None
        if self._sampler.needs_history:
            histories = [(one.prompt, one.output) for one in flight.requests]
        allowed = None
        if self._sampler.is_guided:
            allowed = masks.fill([_guide(one) for one in flight.requests], flight.logits.shape[-1])
        sampled = self._sampler.draw(flight.logits, positions, histories, allowed)
        mx.async_eval(*sampled.arrays())
        flight.sampled, flight.logits = sampled, None

    def land(self) -> Flight | None:
        """Take the flight out, to be read."""
        flight, self.flight = self.flight, None
        return flight


def read(flight: Flight) -> Iterator[Drawn]:
    """Wait for a flight and give each request its token."""
    sampled = flight.sampled
    assert sampled is not None
    tokens = cast("list[int]", sampled.tokens.tolist())
    broken = cast("list[bool]", sampled.broken.tolist())
    logprobs = _logprobs(flight.requests, sampled)
    yield from map(Drawn, flight.requests, tokens, broken, logprobs)


def _rule(request: Request) -> RowRule:
    stop, asked = request.stop, request.logprobs
    return RowRule(
        params=request.sampling,
        logprobs=asked.top if asked is not None else -1,
        min_until=len(request.prompt) + stop.min_tokens,
        blocked=stop.end_ids | stop.stop_ids if stop.min_tokens else frozenset(),
        is_guided=request.guide is not None,
    )


def _guide(request: Request) -> Guide | None:
    """What it draws by; a row that has ended meanwhile may draw what it likes."""
    return request.guide if request.phase is Phase.SEATED else None


def _binds_soon(request: Request) -> bool:
    return request.guide is not None and request.guide.binds_soon


def _inputs(order: Sequence[Request], before: Flight | None) -> mx.array:
    """Give each row its newest token, (B, 1), which the host may not know yet."""
    if before is not None and order == before.requests:
        assert before.sampled is not None
        return before.sampled.tokens[:, None]
    flying = {} if before is None else {one: place for place, one in enumerate(before.requests)}
    known = [one.output[-1] if one.output else one.prompt[-1] for one in order]
    if flying.keys().isdisjoint(order):
        return mx.array([known], mx.uint32).T
    assert before is not None
    assert before.sampled is not None
    tokens = mx.concatenate([before.sampled.tokens, mx.array(known, mx.uint32)])
    here = len(before.requests)
    places = [flying.get(one, here + place) for place, one in enumerate(order)]
    return tokens[mx.array(places)][:, None]


def _logprobs(requests: Sequence[Request], sampled: Sampled) -> Iterator[TokenLogprob | None]:
    scores = sampled.scores.read() if sampled.scores is not None else iter(())
    for request in requests:
        asked = request.logprobs
        yield next(scores).best(asked.top) if asked is not None else None
