"""Puts what was read of an answer into Deltas, in the order in which it was said.

Within a Delta reasoning comes before content, and content before calls: what was said in another
order goes into the next one.
"""

import secrets
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.engine.outputs import Token
from bramley.worker.reading.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from bramley.worker.request import TokenLogprob

TokenBytes = Callable[[int], bytes]

# Mistral's templates take no other ids than these.
_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens and what they said together.

    Attributes:
        reasoning_tokens: of the answer so far, with these.
    """

    tokens: Sequence[Token]
    events: Sequence[Event]
    reasoning_tokens: int


class Packer:
    """Packs one answer's pieces.

    Args:
        index: of the answer.
        stream: what its messages leave out.
        top: alternatives asked for beside each log-probability.
        token_bytes: what an id stands for, where log-probabilities are to have that beside them.
    """

    def __init__(
        self,
        index: int,
        stream: types_pb2.StreamOptions,
        top: int,
        token_bytes: TokenBytes | None = None,
    ) -> None:
        self._index = index
        self._stream = stream
        self._top = top
        self._token_bytes = token_bytes
        self._tokens = 0

    def pack(self, pieces: Iterable[Piece]) -> Iterator[generation_pb2.Delta]:
        """Pack pieces into as few Deltas as keep the order; what says nothing is left out."""
        delta = generation_pb2.Delta(index=self._index)
        for piece in pieces:
            events = () if self._stream.omit_text else piece.events
            if events and not _fits(delta, events[0]):
                yield delta
                delta = generation_pb2.Delta(index=self._index)
            self._add_tokens(delta, piece)
            for event in events:
                if not _fits(delta, event):
                    yield delta
                    delta = self._next(delta)
                _add(delta, event)
        if _says_something(delta):
            yield delta

    def _add_tokens(self, delta: generation_pb2.Delta, piece: Piece) -> None:
        self._tokens += len(piece.tokens)
        delta.completion_tokens = self._tokens
        delta.reasoning_tokens = piece.reasoning_tokens
        ids = [token.token for token in piece.tokens]
        if not self._stream.omit_token_ids:
            delta.token_ids.extend(ids)
        values = [token.logprob for token in piece.tokens if token.logprob is not None]
        if values:
            pack_logprobs(delta.logprobs, ids, values, self._top, self._token_bytes)

    def _next(self, delta: generation_pb2.Delta) -> generation_pb2.Delta:
        return generation_pb2.Delta(
            index=self._index,
            completion_tokens=delta.completion_tokens,
            reasoning_tokens=delta.reasoning_tokens,
        )


def pack_logprobs(
    packed: types_pb2.Logprobs,
    ids: Sequence[int],
    values: Sequence[TokenLogprob],
    top: int,
    token_bytes: TokenBytes | None,
) -> None:
    """Add tokens, each with its log-probability and its ``top`` alternatives."""
    packed.top = top
    packed.token_ids.extend(ids)
    packed.logprobs.extend([one.logprob for one in values])
    for one in values:
        packed.top_token_ids.extend(one.top_ids)
        packed.top_logprobs.extend(one.top_logprobs)
    if token_bytes is not None:
        packed.token_bytes.extend(map(token_bytes, ids))
        for one in values:
            packed.top_token_bytes.extend(map(token_bytes, one.top_ids))


def _says_something(delta: generation_pb2.Delta) -> bool:
    return bool(
        delta.token_ids
        or delta.text
        or delta.reasoning_text
        or delta.tool_calls
        or delta.HasField("logprobs")
    )


def _fits(delta: generation_pb2.Delta, event: Event) -> bool:
    match event:
        case Reasoning():
            return not (delta.text or delta.tool_calls)
        case Text():
            return not delta.tool_calls
        case _:
            return True


def _add(delta: generation_pb2.Delta, event: Event) -> None:
    match event:
        case Reasoning(text=text):
            delta.reasoning_text += text
        case Text(text=text):
            delta.text += text
        case CallStart(index=index, name=name, id=call_id):
            delta.tool_calls.add(index=index, name=name, id=call_id or _new_id())
        case CallArguments(index=index, text=text):
            _call(delta, index).arguments_json += text
        case CallEnd(index=index, is_malformed=is_malformed):
            call = _call(delta, index)
            call.ended, call.malformed = True, is_malformed


def _call(delta: generation_pb2.Delta, index: int) -> types_pb2.ToolCallDelta:
    calls = delta.tool_calls
    return calls[-1] if calls and calls[-1].index == index else calls.add(index=index)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
