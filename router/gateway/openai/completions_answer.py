"""OpenAI's completions: what an answer says, whole or as a stream (pure)."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Tally, Text, Whole
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.objects import Told, Usage, shown


class Logprobs(msgspec.Struct, frozen=True):
    """Of an answer, or a part of it: each token's, side by side."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(msgspec.Struct, frozen=True):
    """An answer, or what is new of it."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, or an event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


def _completion(
    told: Told, request_id: str, choices: list[Choice], usage: Usage | msgspec.UnsetType | None
) -> Completion:
    return Completion(
        id=f"cmpl-{request_id}",
        created=told.created,
        model=told.model,
        choices=choices,
        usage=usage,
    )


class CompletionWhole:
    """Says an answer once it is whole."""

    media_type = "application/json"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._whole = Whole(told.answers)

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._whole.add(response)
        return b""

    def end(self) -> bytes:
        """Say all of it."""
        choices = [_choice(index, text) for index, text in self._whole.texts()]
        tally = self._whole.tally
        usage = objects.usage_of(tally.totals)
        return msgspec.json.encode(_completion(self._told, tally.request_id, choices, usage))

    def fail(self, failure: Failure) -> bytes:
        """Say nothing more: nothing was said."""
        return objects.refusal(failure)


class CompletionStream:
    """Says an answer as it comes: a chunk a Delta, each index's end; counts; DONE."""

    media_type = "text/event-stream"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._tally = Tally(told.answers)
        self._offsets: dict[int, int] = {}

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._tally.add(response)
        match response.WhichOneof("event"):
            case "delta":
                choice = self._delta(response.delta)
            case "finished":
                finished = response.finished
                choice = Choice(
                    finished.index,
                    "",
                    finish_reason=objects.reason_of(finished),
                    stop_reason=objects.matched_by(finished),
                )
            case _:
                choice = None
        if choice is None:
            return b""
        return self._event([choice], None if self._told.tells_usage else msgspec.UNSET)

    def end(self) -> bytes:
        """Say the counts, where they were asked for, and that this is all."""
        self._tally.check_ended()
        if not self._told.tells_usage:
            return objects.DONE
        return self._event([], objects.usage_of(self._tally.totals)) + objects.DONE

    def fail(self, failure: Failure) -> bytes:
        """Say what went wrong, and nothing behind it."""
        return objects.event(objects.refusal_of(failure))

    def _delta(self, delta: generation_pb2.Delta) -> Choice | None:
        logprobs: Logprobs | None = None
        if delta.HasField("logprobs"):
            offset = self._offsets.get(delta.index, 0)
            logprobs = _logprobs([delta.logprobs], offset)
            self._offsets[delta.index] = offset + sum(map(len, logprobs.tokens))
        if not delta.text and logprobs is None:
            return None
        return Choice(delta.index, delta.text, logprobs)

    def _event(self, choices: list[Choice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        return objects.event(_completion(self._told, self._tally.request_id, choices, usage))


def _choice(index: int, text: Text) -> Choice:
    assert text.finished is not None, "only what has ended is told"
    return Choice(
        index,
        "".join(text.content),
        _logprobs(text.logprobs, 0) if text.logprobs else None,
        objects.reason_of(text.finished),
        objects.matched_by(text.finished),
    )


def _logprobs(packed: Iterable[types_pb2.Logprobs], offset: int) -> Logprobs:
    """Say log-probabilities; the texts of the tokens stand one after the other from ``offset``."""
    made = Logprobs([], [], [], [])
    for one in packed:
        for place, token in enumerate(map(shown, one.token_bytes)):
            made.tokens.append(token)
            made.token_logprobs.append(one.logprobs[place])
            made.top_logprobs.append(dict(_top(one, place)))
            made.text_offset.append(offset)
            offset += len(token)
    return made


def _top(packed: types_pb2.Logprobs, place: int) -> Iterator[tuple[str, float]]:
    for at in reversed(range(place * packed.top, (place + 1) * packed.top)):
        # Of two that look the same the likelier one stays: it is the last to be said.
        yield shown(packed.top_token_bytes[at]), packed.top_logprobs[at]
