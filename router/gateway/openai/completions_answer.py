"""OpenAI's completions: what an answer says, whole or as a stream (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.gather import Text
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.objects import Told, Usage, shown
from bramley.router.gateway.openai.telling import MaybeUsage, StreamAnswer, WholeAnswer


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
    choices: Sequence[Choice]
    usage: MaybeUsage = msgspec.UNSET


def _completion(
    told: Told, request_id: str, choices: Sequence[Choice], usage: MaybeUsage
) -> Completion:
    return Completion(
        id=f"cmpl-{request_id}",
        created=told.created,
        model=told.model,
        choices=choices,
        usage=usage,
    )


class CompletionWhole(WholeAnswer):
    """Says an answer once it is whole."""

    def _object(
        self, request_id: str, texts: Iterable[tuple[int, Text]], usage: Usage
    ) -> Completion:
        choices = [_choice(index, text) for index, text in texts]
        return _completion(self._told, request_id, choices, usage)


class CompletionStream(StreamAnswer[Choice]):
    """Says an answer as it comes: a chunk a Delta, each index's end."""

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._offsets: dict[int, int] = {}

    def _delta(self, delta: generation_pb2.Delta) -> Iterator[Choice]:
        logprobs: Logprobs | None = None
        if delta.HasField("logprobs"):
            offset = self._offsets.get(delta.index, 0)
            logprobs = _logprobs([delta.logprobs], offset)
            self._offsets[delta.index] = offset + sum(map(len, logprobs.tokens))
        if delta.text or logprobs is not None:
            yield Choice(delta.index, delta.text, logprobs)

    def _finished(self, finished: generation_pb2.Finished) -> Iterator[Choice]:
        yield Choice(
            finished.index,
            "",
            finish_reason=objects.reason_of(finished),
            stop_reason=objects.matched_by(finished),
        )

    def _chunk(self, request_id: str, parts: Sequence[Choice], usage: MaybeUsage) -> Completion:
        return _completion(self._told, request_id, parts, usage)


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
