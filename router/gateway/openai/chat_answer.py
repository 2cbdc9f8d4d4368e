"""OpenAI's chat completions: what an answer says, whole or as a stream (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.gather import Text
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.objects import Told, ToolCall, Usage, shown
from bramley.router.gateway.openai.telling import MaybeUsage, StreamAnswer, WholeAnswer


class Alternative(msgspec.Struct, frozen=True):
    """A token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token that is."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct, frozen=True):
    """Of an answer, or a part of it."""

    content: list[TokenLogprob]


class Message(msgspec.Struct, frozen=True):
    """An answer."""

    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    """An answer and how it ended."""

    index: int
    message: Message
    finish_reason: str
    stop_reason: str | int | None
    logprobs: Logprobs | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True):
    """What is new."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class Part(msgspec.Struct, frozen=True):
    """What is new of one answer."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: Sequence[Part]
    usage: MaybeUsage = msgspec.UNSET


class ChatWhole(WholeAnswer):
    """Says an answer once it is whole."""

    def _object(
        self, request_id: str, texts: Iterable[tuple[int, Text]], usage: Usage
    ) -> Completion:
        return Completion(
            id=f"chatcmpl-{request_id}",
            created=self._told.created,
            model=self._told.model,
            choices=[_choice(index, text) for index, text in texts],
            usage=usage,
        )


class ChatStream(StreamAnswer[Part]):
    """Says an answer as it comes: each index's role, a chunk a Delta, its end."""

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._begun = set[int]()

    def _delta(self, delta: generation_pb2.Delta) -> Iterator[Part]:
        told = Delta(
            content=delta.text or msgspec.UNSET,
            reasoning_content=delta.reasoning_text or msgspec.UNSET,
            tool_calls=[objects.part_of(part) for part in delta.tool_calls if _is_told(part)]
            or msgspec.UNSET,
        )
        logprobs = _logprobs([delta.logprobs]) if delta.HasField("logprobs") else None
        if told == Delta() and logprobs is None:
            return
        yield from self._begin(delta.index)
        yield Part(delta.index, told, logprobs)

    def _finished(self, finished: generation_pb2.Finished) -> Iterator[Part]:
        yield from self._begin(finished.index)
        matched = objects.matched_by(finished)
        yield Part(
            finished.index,
            Delta(),
            finish_reason=objects.reason_of(finished),
            stop_reason=msgspec.UNSET if matched is None else matched,
        )

    def _begin(self, index: int) -> Iterator[Part]:
        if index not in self._begun:
            self._begun.add(index)
            yield Part(index, Delta(role="assistant", content=""))

    def _chunk(self, request_id: str, parts: Sequence[Part], usage: MaybeUsage) -> Chunk:
        return Chunk(
            id=f"chatcmpl-{request_id}",
            created=self._told.created,
            model=self._told.model,
            choices=parts,
            usage=usage,
        )


def _is_told(part: types_pb2.ToolCallDelta) -> bool:
    """Whether it says more than that its call has ended, for which there is no word."""
    return bool(part.id or part.name or part.arguments_json)


def _choice(index: int, text: Text) -> Choice:
    assert text.finished is not None, "only what has ended is told"
    calls = [objects.call_of(call) for _, call in sorted(text.calls.items())]
    content, reasoning = "".join(text.content), "".join(text.reasoning)
    return Choice(
        index=index,
        message=Message(
            content=content or (None if calls else ""),
            reasoning_content=reasoning or msgspec.UNSET,
            tool_calls=calls or msgspec.UNSET,
        ),
        finish_reason=objects.reason_of(text.finished),
        stop_reason=objects.matched_by(text.finished),
        logprobs=_logprobs(text.logprobs) if text.logprobs else None,
    )


def _logprobs(packed: list[types_pb2.Logprobs]) -> Logprobs:
    return Logprobs([each for one in packed for each in tokens_of(one)])


def tokens_of(packed: types_pb2.Logprobs) -> Iterator[TokenLogprob]:
    """Say each token's log-probability."""
    top = [
        Alternative(shown(token), logprob, list(token))
        for token, logprob in zip(packed.top_token_bytes, packed.top_logprobs, strict=True)
    ]
    for place, (token, logprob) in enumerate(zip(packed.token_bytes, packed.logprobs, strict=True)):
        beside = top[place * packed.top : (place + 1) * packed.top]
        yield TokenLogprob(shown(token), logprob, list(token), beside)
