"""What the record of requests says in figures: plain functions of their events."""

import math
from collections.abc import Sequence
from itertools import pairwise

from bramley.bench.serve.record import Event, Request


class Unmeasurable(Exception):
    """A request has not what a figure needs; says which."""


def ttft_s(request: Request) -> float:
    """From the request to the first text that came."""
    return _events(request)[0].at_s - request.sent_s


def wall_s(request: Request) -> float:
    """From the request to the end of its answer."""
    return request.ended_s - request.sent_s


def tokens(request: Request) -> int:
    """How many tokens the answer has."""
    return sum(event.tokens for event in request.events)


def decode_rate(request: Request) -> float:
    """Tell tokens a second, from the first event to the last; the first one's do not count.

    Returns:
        It.

    Raises:
        Unmeasurable: they are one event.
    """
    first, *later = _events(request)
    if not later or later[-1].at_s <= first.at_s:
        raise Unmeasurable(f"request {request.index} of {request.phase} came all at once")
    return sum(event.tokens for event in later) / (later[-1].at_s - first.at_s)


def prefill_rate(request: Request) -> float:
    """Tell tokens a second of the prompt up to the first text; cached ones do not count.

    Returns:
        It.

    Raises:
        Unmeasurable: the server does not count its prompt's tokens.
    """
    if request.prompt_tokens is None:
        raise Unmeasurable("the server does not tell how many tokens a prompt has")
    return (request.prompt_tokens - cached(request)) / ttft_s(request)


def cached(request: Request) -> int:
    """Of the prompt's tokens, those that some cache had; 0 where nobody tells."""
    return sum((request.cached_tokens or {}).values())


def cached_tokens(request: Request) -> int:
    """Tell how many of the prompt's tokens some cache had.

    Returns:
        It.

    Raises:
        Unmeasurable: the server does not tell.
    """
    if request.cached_tokens is None:
        raise Unmeasurable("the server does not tell how many tokens were cached")
    return cached(request)


def aggregate_rate(requests: Sequence[Request]) -> float:
    """Tokens a second of all together, from the first request to the last answer's end."""
    start_s = min(request.sent_s for request in requests)
    stop_s = max(request.ended_s for request in requests)
    return sum(map(tokens, requests)) / (stop_s - start_s)


def gaps_s(requests: Sequence[Request], start_s: float, stop_s: float) -> list[float]:
    """Between one text and the next of the same answer, whole, where any of it is in the span."""
    # A stream that stands still beyond the end of the span is what a span is looked at for.
    return [
        later.at_s - event.at_s
        for request in requests
        for event, later in pairwise(request.events)
        if event.at_s < stop_s and later.at_s > start_s
    ]


def longest_gap_s(stream: Sequence[Request], start_s: float, stop_s: float) -> float:
    """The longest that a stream stood still within the span, whose ends count as texts."""
    times = [event.at_s for request in stream for event in request.events]
    marks = [start_s, *(at_s for at_s in times if start_s < at_s < stop_s), stop_s]
    return max(later - at_s for at_s, later in pairwise(marks))


def rate_between(requests: Sequence[Request], start_s: float, stop_s: float) -> float:
    """Tokens a second of all together within the span."""
    came = [e.tokens for each in requests for e in each.events if start_s < e.at_s <= stop_s]
    return sum(came) / (stop_s - start_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Tell the smallest value that is not below ``share`` of all.

    Returns:
        It.

    Raises:
        Unmeasurable: there are none.
    """
    if not values:
        raise Unmeasurable("no texts came of which to tell how far they are apart")
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def cached_share(requests: Sequence[Request]) -> float:
    """Tell the cached part of all prompts' tokens.

    Returns:
        It.

    Raises:
        Unmeasurable: the server does not tell.
    """
    asked = [each.prompt_tokens for each in requests if each.cached_tokens is not None]
    prompts = [count for count in asked if count is not None]
    if len(prompts) < len(requests) or not sum(prompts):
        raise Unmeasurable("the server does not tell how many tokens were cached")
    return sum(map(cached, requests)) / sum(prompts)


def stability(rates: Sequence[float]) -> float | None:
    """Largest over smallest, of samples that should be equal; None without any."""
    return max(rates) / min(rates) if rates else None


def _events(request: Request) -> list[Event]:
    if request.error is not None or not request.events:
        why = request.error or "no text came"
        raise Unmeasurable(f"request {request.index} of {request.phase}: {why}")
    return request.events
