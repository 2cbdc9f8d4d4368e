"""OpenAI's responses: how a model's items grow, and what a stream says of it (pure)."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

import msgspec

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.openai.chat_answer import TokenLogprob, tokens_of
from bramley.router.gateway.openai.responses_items import (
    FunctionCall,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Status,
)


class Event(msgspec.Struct):
    """An event of a stream; it has the fields of its type."""

    type: str
    sequence_number: int = 0
    response: Any = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    item: Item | msgspec.UnsetType = msgspec.UNSET
    part: OutputText | ReasoningText | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    param: str | msgspec.UnsetType | None = msgspec.UNSET


class _Growing(ABC):
    """An item that has not ended.

    Args:
        place: among the answer's items.
        request_id: of which its own is made.
    """

    PREFIX: ClassVar[str]

    def __init__(self, place: int, request_id: str) -> None:
        self.place = place
        self.name = f"{self.PREFIX}_{request_id}_{place}"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All of it, so far."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: Status) -> Item:
        """Make the item, as far as it has come."""

    def begin(self) -> Iterator[Event]:
        """Say that it begins."""
        yield Event(
            "response.output_item.added", output_index=self.place, item=self.item("in_progress")
        )

    def end(self, status: Status) -> Iterator[Event]:
        """Say that it ends."""
        yield Event("response.output_item.done", output_index=self.place, item=self.item(status))

    def _event(self, kind: str, **fields: Any) -> Event:  # noqa: ANN401 -- as Event has them
        return Event(f"response.{kind}", output_index=self.place, item_id=self.name, **fields)


class _Thinking(_Growing):
    """What is thought."""

    PREFIX = Reasoning.PREFIX

    def item(self, status: Status) -> Item:
        content = [] if status == "in_progress" else [ReasoningText(text=self.text)]
        return Reasoning(id=self.name, content=content, status=status)

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._event("content_part.added", content_index=0, part=ReasoningText(text=""))

    def grow(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: Status) -> Iterator[Event]:
        text = self.text
        yield self._event("reasoning_text.done", content_index=0, text=text)
        yield self._event("content_part.done", content_index=0, part=ReasoningText(text=text))
        yield from super().end(status)


class _Saying(_Growing):
    """What is said."""

    PREFIX = Message.PREFIX

    def __init__(self, place: int, request_id: str) -> None:
        super().__init__(place, request_id)
        self._logprobs: list[TokenLogprob] = []

    @property
    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=[*self._logprobs])

    def item(self, status: Status) -> Item:
        content = [] if status == "in_progress" else [self._part]
        return Message(id=self.name, role="assistant", content=content, status=status)

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._event("content_part.added", content_index=0, part=OutputText(text=""))

    def grow(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        self._texts.append(text)
        self._logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def end(self, status: Status) -> Iterator[Event]:
        part = self._part
        told, logprobs = part.text, self._logprobs
        yield self._event("output_text.done", content_index=0, text=told, logprobs=logprobs)
        yield self._event("content_part.done", content_index=0, part=part)
        yield from super().end(status)


class _Calling(_Growing):
    """A call of a tool."""

    PREFIX = FunctionCall.PREFIX

    def __init__(self, place: int, request_id: str, call: types_pb2.ToolCallDelta) -> None:
        super().__init__(place, request_id)
        self._call_id, self._tool = call.id, call.name

    def item(self, status: Status) -> Item:
        return FunctionCall(
            id=self.name,
            call_id=self._call_id,
            name=self._tool,
            arguments=self.text,
            status=status,
        )

    def grow(self, part: types_pb2.ToolCallDelta) -> Iterator[Event]:
        if part.arguments_json:
            self._texts.append(part.arguments_json)
            yield self._event("function_call_arguments.delta", delta=part.arguments_json)

    def end(self, status: Status) -> Iterator[Event]:
        yield self._event("function_call_arguments.done", arguments=self.text)
        yield from super().end(status)


_Open = _Thinking | _Saying | _Calling
_One = TypeVar("_One", bound=_Open)


class Writing:
    """Makes items of an answer's Deltas: each ends where another begins.

    Attributes:
        request_id: of which the items' ids are made; set before the first Delta.
        items: that have ended.
    """

    def __init__(self) -> None:
        self.request_id = ""
        self.items: list[Item] = []
        self._open: _Open | None = None
        self._thought = 0  # tokens
        self._waiting: list[TokenLogprob] = []  # for a text
        self._rest = b""  # of the token before them, that no text has had yet

    def add(self, delta: generation_pb2.Delta) -> Iterator[Event]:
        """Take the next Delta; says what comes of it."""
        if delta.reasoning_text:
            self._forget()
            thinking = self._open
            if not isinstance(thinking, _Thinking):
                thinking = yield from self._begin(_Thinking)
            yield from thinking.grow(delta.reasoning_text)
        self._waiting += self._logprobs(delta)
        if delta.text:
            yield from self._say(delta.text)
        for part in delta.tool_calls:
            self._forget()
            yield from self._call(part)

    def end(self, *, is_cut: bool) -> Iterator[Event]:
        """Take the answer's end; says what comes of it."""
        if self._open is None and not self.items:
            yield from self._say("")
        yield from self._close("incomplete" if is_cut else "completed")

    def _say(self, text: str) -> Iterator[Event]:
        saying = self._open
        if not isinstance(saying, _Saying):
            saying = yield from self._begin(_Saying)
        yield from saying.grow(text, self._written(text))

    def _call(self, part: types_pb2.ToolCallDelta) -> Iterator[Event]:
        calling = self._open
        if part.id or part.name:
            calling = yield from self._begin(partial(_Calling, call=part))
        if isinstance(calling, _Calling):  # else it has ended before
            yield from calling.grow(part)
            if part.ended:
                yield from self._close()

    def _begin(self, kind: Callable[[int, str], _One]) -> Generator[Event, None, _One]:
        yield from self._close()
        begun = kind(len(self.items), self.request_id)
        self._open = begun
        yield from begun.begin()
        return begun

    def _close(self, status: Status = "completed") -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self.items.append(self._open.item(status))
            self._open = None

    def _logprobs(self, delta: generation_pb2.Delta) -> list[TokenLogprob]:
        """Take those of what is not thought: what is comes first."""
        thought = delta.reasoning_tokens - self._thought
        self._thought = delta.reasoning_tokens
        return [*tokens_of(delta.logprobs)][thought:]

    def _written(self, text: str) -> list[TokenLogprob]:
        """Take log-probabilities of the tokens that wrote a text; others mark what begins or ends.

        Returns:
            Them. What is before them wrote nothing; what is behind waits for what it writes.
        """
        written, waiting = text.encode(), self._waiting
        said = b"".join([self._rest, *[bytes(one.bytes) for one in waiting]])
        # Where each begins, and the last one ends.
        starts = [*accumulate((len(one.bytes) for one in waiting), initial=len(self._rest))]
        begin = said.find(written)
        if begin < 0:  # it is not what the tokens say
            self._forget()
            return waiting
        end = begin + len(written)
        first = max(0, bisect_right(starts, begin) - 1)
        behind = bisect_left(starts, end, hi=len(waiting))
        self._waiting, self._rest = waiting[behind:], said[end : starts[behind]]
        return waiting[first:behind]

    def _forget(self) -> None:
        self._waiting, self._rest = [], b""
