"""Anthropic's messages: what an answer says, whole or as a stream (pure).

The input of a call is an object to Anthropic's clients, and they read it while it comes: what is no
object breaks them. So a stream holds a call's input back until it is whole, unless its tool
is streamed eagerly, and what is no object is told as the text that the model wrote, in one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gateway.anthropic import objects
from bramley.router.gateway.anthropic.objects import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Tally, Totals

_EMPTY: Final = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer needs of its request.

    Attributes:
        model: as it was asked for.
        eager: tools whose input is streamed as the model writes it, whatever that is.
        is_diagnosed: whether it asks why no more was cached.
    """

    model: str
    eager: frozenset[str] = frozenset()
    is_diagnosed: bool = False


@dataclass(slots=True)
class Block:
    """A block of an answer.

    Attributes:
        place: of it, among all.
        call: of a call, which it is of the answer's.
        said: its texts, as far as they are kept.
    """

    kind: Literal["thinking", "text", "tool_use"]
    place: int
    call: int = -1
    id: str = ""
    name: str = ""
    said: list[str] = field(default_factory=list[str])


class Blocks:
    """Parts an answer into blocks, the same for both modes."""

    def __init__(self) -> None:
        self.has_called = False
        self._last: Block | None = None

    def add(self, delta: generation_pb2.Delta) -> Iterator[tuple[Block, str]]:
        """Take what is new.

        Yields:
            A block, which is the last one or a new one, and what is new of it.
        """
        if delta.reasoning_text:
            yield self._block("thinking"), delta.reasoning_text
        if delta.text:
            yield self._block("text"), delta.text
        for part in delta.tool_calls:
            self.has_called = True
            block = self._block("tool_use", part.index)
            block.id = block.id or part.id
            block.name = block.name or part.name
            yield block, part.arguments_json

    def _block(self, kind: Literal["thinking", "text", "tool_use"], call: int = -1) -> Block:
        last = self._last
        if last is not None and (last.kind, last.call) == (kind, call):
            return last
        self._last = Block(kind, 0 if last is None else last.place + 1, call)
        return self._last


class MessageWhole:
    """Says an answer once it is whole."""

    media_type = "application/json"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._tally = Tally(1)
        self._parting = Blocks()
        self._blocks: list[Block] = []
        self._end = objects.End()

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._tally.add(response)
        match response.WhichOneof("event"):
            case "delta":
                for block, piece in self._parting.add(response.delta):
                    if block.place == len(self._blocks):
                        self._blocks.append(block)
                    block.said.append(piece)
            case "finished":
                has_called = self._parting.has_called
                self._end = objects.end_of(response.finished, has_called=has_called)
            case _:
                pass
        return b""

    def end(self) -> bytes:
        """Say all of it."""
        self._tally.check_ended()
        content = [_whole(block) for block in self._blocks]
        return msgspec.json.encode(
            _message(self._told, self._tally.request_id, content, self._end, self._tally.totals)
        )

    def fail(self, failure: Failure) -> bytes:
        """Say nothing more: nothing was said."""
        return objects.refusal(failure)


class MessageStream:
    """Says an answer as it comes: the message's start, its blocks one after another, its end."""

    media_type = "text/event-stream"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._tally = Tally(1)
        self._parting = Blocks()
        self._prompt = Totals()
        self._is_begun = False
        self._open: Block | None = None

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._tally.add(response)
        match response.WhichOneof("event"):
            case "started":
                started, cached = response.started, response.started.cached
                counted = cached.parked + cached.ram + cached.ssd
                self._prompt = Totals(prompt=started.prompt_tokens, cached=counted)
                return b""
            case "delta":
                events = self._delta(response.delta)
            case "finished":
                events = self._finished(response.finished)
            case _:
                return b""
        return b"".join([objects.said(event) for event in (*self._begin(), *events)])

    def end(self) -> bytes:
        """Say that this is all."""
        self._tally.check_ended()
        return objects.said(MessageStop())

    def fail(self, failure: Failure) -> bytes:
        """Say what went wrong, and nothing behind it."""
        return objects.said(objects.refusal_of(failure))

    def _begin(self) -> Iterator[Event]:
        if self._is_begun:
            return
        self._is_begun = True
        request_id = self._tally.request_id
        yield MessageStart(_message(self._told, request_id, [], objects.End(), self._prompt))
        yield Ping()

    def _delta(self, delta: generation_pb2.Delta) -> Iterator[Event]:
        for block, piece in self._parting.add(delta):
            if block is not self._open:
                yield from self._close()
                self._open = block
                yield BlockStart(block.place, _begun(block))
            if self._is_held(block):
                block.said.append(piece)
            elif piece:
                yield BlockDelta(block.place, _part(block, piece))

    def _finished(self, finished: generation_pb2.Finished) -> Iterator[Event]:
        yield from self._close()
        end = objects.end_of(finished, has_called=self._parting.has_called)
        yield MessageDelta(end, objects.usage_of(self._tally.totals))

    def _close(self) -> Iterator[Event]:
        block = self._open
        if block is None:
            return
        if self._is_held(block):
            yield BlockDelta(block.place, InputJsonDelta(_input_of(block)))
        elif block.kind == "thinking":
            yield BlockDelta(block.place, SignatureDelta(objects.SIGNATURE))
        yield BlockStop(block.place)

    def _is_held(self, block: Block) -> bool:
        return block.kind == "tool_use" and block.name not in self._told.eager


def _message(
    told: Told, request_id: str, content: list[objects.Block], end: objects.End, totals: Totals
) -> Message:
    return Message(
        id=f"msg_{request_id}",
        role="assistant",
        model=told.model,
        content=content,
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=objects.usage_of(totals),
        diagnostics=objects.Diagnostics(objects.Unavailable()) if told.is_diagnosed else None,
    )


def _whole(block: Block) -> objects.Block:
    text = "".join(block.said)
    match block.kind:
        case "thinking":
            return objects.Thinking(text, objects.SIGNATURE)
        case "text":
            return objects.Text(text)
        case "tool_use":
            return objects.ToolUse(block.id, block.name, msgspec.Raw(_input_of(block).encode()))


def _begun(block: Block) -> objects.Block:
    match block.kind:
        case "thinking":
            return objects.Thinking("", "")
        case "text":
            return objects.Text("")
        case "tool_use":
            return objects.ToolUse(block.id, block.name, _EMPTY)


def _part(block: Block, piece: str) -> TextDelta | ThinkingDelta | InputJsonDelta:
    match block.kind:
        case "thinking":
            return ThinkingDelta(piece)
        case "text":
            return TextDelta(piece)
        case "tool_use":
            return InputJsonDelta(piece)


def _input_of(block: Block) -> str:
    """Tell a call's input: the object that the model wrote, or else one that holds its text."""
    written = "".join(block.said)
    try:
        is_object = isinstance(msgspec.json.decode(written), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        is_object = False
    return written if is_object else msgspec.json.encode({objects.MALFORMED: written}).decode()
