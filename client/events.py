"""What a generation tells its client, as plain values; the fold of them into one answer."""

from collections import defaultdict
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


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a token was, by the model's own distribution.

    Attributes:
        top: the alternatives that were asked for, id to log-probability, most likely first.
    """

    token_id: int
    logprob: float
    top: dict[int, float]


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of one call of a tool.

    Attributes:
        index: of the call in its answer.
        id: in the call's first only, as the name is.
        arguments: more of their text.
        is_malformed: the arguments are no JSON object, but what the model wrote.
        is_ended: the call is whole.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    is_malformed: bool = False
    is_ended: bool = False


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool.

    Attributes:
        arguments: their text: a JSON object, if the call is whole and not malformed.
        is_malformed: the arguments are no JSON object, but what the model wrote.
        is_ended: else the answer's end cut it.
    """

    id: str
    name: str
    arguments: str
    is_malformed: bool = False
    is_ended: bool = True


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one answer since its last Delta.

    Attributes:
        index: of the answer, where several were asked for.
        tool_calls: parts of calls.
        completion_tokens: all of this answer so far.
        reasoning_tokens: those of them that were reasoning.
        logprobs: one a token, where they were asked for.
        prompt_logprobs: of the prompt from its second token on, once, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    reasoning_text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    completion_tokens: int
    reasoning_tokens: int = 0
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request; ``cached_tokens`` has the keys "parked", "ram" and "ssd"."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: dict[str, int]
    reasoning_tokens: int = 0  # part of completion_tokens


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; ``queue_s``, ``ttft_s`` and ``total_s`` count from the router's receipt."""

    queue_s: float
    ttft_s: float
    total_s: float
    restore_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of an answer that ended well.

    Attributes:
        index: of the answer, where several were asked for.
        reason: "stop", "stop_sequence", "length", "tool_calls", "grammar_complete" or "aborted".
        matched: the stop string or stop token id that was met.
    """

    reason: str
    matched: str | int | None = None
    usage: Usage
    timings: Timings
    index: int = 0


Event = Accepted | Started | Progress | Delta | Finished


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One whole answer; ``matched`` is the stop string or stop token id that ended it."""

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings
    reasoning_text: str = ""
    tool_calls: list[ToolCall] = []
    matched: str | int | None = None
    logprobs: list[TokenLogprob] = []


class Completion(Choice, frozen=True, kw_only=True):
    """The answer, and where several were asked for the first of them.

    Attributes:
        usage: of all answers together; their prompt counts once.
        choices: every answer by index, the first included.
        prompt_logprobs: of the prompt from its second token on, where asked for.
    """

    choices: list[Choice]
    prompt_logprobs: list[TokenLogprob] = []
    request_id: str = ""


def joined(parts: Iterable[ToolCallDelta]) -> list[ToolCall]:
    """Join the parts of one answer's calls, by their indexes."""
    calls: defaultdict[int, list[ToolCallDelta]] = defaultdict(list)
    for part in parts:
        calls[part.index].append(part)
    return [
        ToolCall(
            id="".join([part.id for part in of_call]),
            name="".join([part.name for part in of_call]),
            arguments="".join([part.arguments for part in of_call]),
            is_malformed=any(part.is_malformed for part in of_call),
            is_ended=any(part.is_ended for part in of_call),
        )
        for _, of_call in sorted(calls.items())
    ]


class _Part:
    """What is known of one answer so far."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.finished: Finished | None = None

    def choice(self) -> Choice:
        assert self.finished is not None, "a stream ended well without Finished"
        return Choice(
            text="".join([delta.text for delta in self.deltas]),
            token_ids=[token for delta in self.deltas for token in delta.token_ids],
            finish_reason=self.finished.reason,
            usage=self.finished.usage,
            timings=self.finished.timings,
            reasoning_text="".join([delta.reasoning_text for delta in self.deltas]),
            tool_calls=joined(part for delta in self.deltas for part in delta.tool_calls),
            matched=self.finished.matched,
            logprobs=[one for delta in self.deltas for one in delta.logprobs],
        )


class Gathering:
    """Gathers one request's events into a Completion."""

    def __init__(self) -> None:
        self._request_id = ""
        self._parts: defaultdict[int, _Part] = defaultdict(_Part)

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
                self._parts[event.index].deltas.append(event)
            case Finished():
                self._parts[event.index].finished = event
            case Started() | Progress():
                pass

    def completion(self) -> Completion:
        """Make the answer; only after Finished, which every stream that ends well has."""
        choices = [part.choice() for _, part in sorted(self._parts.items())]
        assert choices, "a stream ended well without Finished"
        first = choices[0]
        usage = msgspec.structs.replace(
            first.usage,
            completion_tokens=sum(choice.usage.completion_tokens for choice in choices),
            reasoning_tokens=sum(choice.usage.reasoning_tokens for choice in choices),
        )
        return Completion(
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=first.finish_reason,
            usage=usage,
            timings=first.timings,
            reasoning_text=first.reasoning_text,
            tool_calls=first.tool_calls,
            matched=first.matched,
            logprobs=first.logprobs,
            choices=choices,
            prompt_logprobs=[
                one for delta in self._parts[0].deltas for one in delta.prompt_logprobs
            ],
            request_id=self._request_id,
        )
