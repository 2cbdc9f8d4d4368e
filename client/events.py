"""What a generation tells its client, as plain values; the fold of them into one answer."""

from collections.abc import Iterable
from typing import Self

import msgspec


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The router took the request; ``request_id`` is the router's own, for logs and ``abort``."""

    request_id: str
    queue_position: int


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A worker has the request; ``cached_tokens`` counts prompt tokens by tier."""

    queue_s: float
    prompt_tokens: int
    cached_tokens: dict[str, int]
    worker: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt is computed; comes only when asked for."""

    done_tokens: int
    prompt_tokens: int


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since the last Delta; ``completion_tokens`` counts all so far."""

    text: str
    token_ids: tuple[int, ...]
    reasoning_text: str = ""
    completion_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request; ``cached_tokens`` has the keys "parked", "ram" and "ssd"."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: dict[str, int]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; ``queue_s``, ``ttft_s`` and ``total_s`` count from the router's receipt."""

    queue_s: float
    ttft_s: float
    total_s: float
    restore_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a request that ended well.

    Attributes:
        reason: "stop", "stop_sequence", "length", "tool_calls", "grammar_complete" or "aborted".
        matched: the stop string or stop token id that was met.
    """

    reason: str
    matched: str | int | None = None
    usage: Usage
    timings: Timings


Event = Accepted | Started | Progress | Delta | Finished


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings
    reasoning_text: str = ""
    request_id: str = ""


class Gathering:
    """Gathers one request's events into a Completion."""

    def __init__(self) -> None:
        self._request_id = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._token_ids: list[int] = []
        self._finished: Finished | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Gather all of ``events``."""
        gathering = cls()
        for event in events:
            gathering.add(event)
        return gathering

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Accepted():
                self._request_id = event.request_id
            case Delta():
                self._text.append(event.text)
                self._reasoning.append(event.reasoning_text)
                self._token_ids.extend(event.token_ids)
            case Finished():
                self._finished = event
            case Started() | Progress():
                pass

    def completion(self) -> Completion:
        """Make the answer; only after Finished, which every stream that ends well has."""
        assert self._finished is not None, "a stream ended well without Finished"
        return Completion(
            text="".join(self._text),
            token_ids=self._token_ids,
            finish_reason=self._finished.reason,
            usage=self._finished.usage,
            timings=self._finished.timings,
            reasoning_text="".join(self._reasoning),
            request_id=self._request_id,
        )
