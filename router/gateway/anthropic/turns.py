"""Anthropic's turns: blocks of messages to a conversation, as templates know it (pure).

A template knows one text a turn, and a turn for each result of a call. So the texts of a turn are
joined as they are, results become turns of their own, and turns of one role that follow each other
become one, with an empty line between, as Anthropic makes them one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import types_pb2
from bramley.router.gateway.bodies import as_json

_GAP = "\n\n"
_FAILED = "Error: "  # no template has a word for a call that failed


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a prefix is to be cached, which every prefix is."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Content."""

    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class Thinking(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"
):
    """Reasoning of an earlier turn."""

    thinking: str
    signature: str | None = None


class RedactedThinking(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="redacted_thinking",
):
    """Reasoning that nobody but its author can read."""

    data: str


class Caller(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who called: the model."""

    type: Literal["direct"]


class ToolUse(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"
):
    """A call of an earlier turn."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Caller | None = None
    toolset_name: None = None


class ToolResult(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"
):
    """What became of a call."""

    tool_use_id: str
    content: str | list[Text] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", tag="user"):
    """A user's turn."""

    content: str | list[Text | ToolResult]


class Assistant(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"
):
    """A model's turn."""

    content: str | list[Text | Thinking | RedactedThinking | ToolUse]


class System(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", tag="system"
):
    """What is said on nobody's behalf."""

    content: str | list[Text]


Message = User | Assistant | System


def put_turns(
    chat: types_pb2.ChatInput, system: str | list[Text] | None, messages: Sequence[Message]
) -> None:
    """Make a conversation; the answer goes on from a last turn that is the assistant's.

    Raises:
        InvalidRequest: there is no turn, or the last one waits for results of its calls.
    """
    if not messages:
        raise InvalidRequest("messages", "is empty")
    turns = _Turns(chat)
    if system:
        turns.system(_text_of(system))
    for message in messages:
        match message:
            case User():
                turns.user(message)
            case Assistant():
                turns.assistant(message)
            case System():
                turns.system(_text_of(message.content))
    turns.end()
    if isinstance(messages[-1], Assistant):
        if chat.messages[-1].tool_calls:
            problem = "calls tools, and is the last: their results have to follow"
            raise InvalidRequest(f"messages[{len(messages) - 1}]", problem)
        chat.continue_final_message = True


class _Turns:
    """Writes turns. A turn's texts are joined at its end: it may be any number of messages."""

    def __init__(self, chat: types_pb2.ChatInput) -> None:
        self._chat = chat
        self._called: dict[str, str] = {}  # names of tools, by the id of the call
        self._texts: list[str] = []  # of the last turn
        self._thoughts: list[str] = []  # likewise

    def system(self, text: str) -> None:
        self._turn("system")
        self._texts.append(text)

    def user(self, message: User) -> None:
        for part in _parted(message.content):
            if isinstance(part, ToolResult):
                self._result(part)
            else:
                self._turn("user")
                self._texts.append(part)

    def _result(self, result: ToolResult) -> None:
        self.end()
        text = _text_of(result.content or "")
        self._chat.messages.add(
            role="tool",
            content=_FAILED + text if result.is_error else text,
            tool_call_id=result.tool_use_id,
            name=self._called.get(result.tool_use_id, ""),
        )

    def assistant(self, message: Assistant) -> None:
        made = self._turn("assistant")
        if isinstance(message.content, str):
            self._texts.append(message.content)
            return
        texts = [block.text for block in message.content if isinstance(block, Text)]
        calls = [block for block in message.content if isinstance(block, ToolUse)]
        if texts or not calls:
            self._texts.append("".join(texts))
        self._thoughts += [each.thinking for each in message.content if isinstance(each, Thinking)]
        for call in calls:
            self._called[call.id] = call.name
            made.tool_calls.add(id=call.id, name=call.name, arguments_json=as_json(call.input))

    def _turn(self, role: str) -> types_pb2.ChatMessage:
        """The last turn, if it is of the role; else a new one."""
        messages = self._chat.messages
        if messages and messages[-1].role == role:
            return messages[-1]
        self.end()
        return messages.add(role=role)

    def end(self) -> None:
        """Say what the last turn says."""
        if self._texts:
            self._chat.messages[-1].content = _GAP.join(filter(None, self._texts))
        if self._thoughts:
            self._chat.messages[-1].reasoning_content = _GAP.join(filter(None, self._thoughts))
        self._texts, self._thoughts = [], []


def _text_of(content: str | list[Text]) -> str:
    return content if isinstance(content, str) else "".join([block.text for block in content])


def _parted(content: str | list[Text | ToolResult]) -> Iterator[str | ToolResult]:
    """Part a user's turn into results and the texts between them."""
    if isinstance(content, str):
        yield content
        return
    texts: list[str] = []
    for block in content:
        if isinstance(block, Text):
            texts.append(block.text)
            continue
        if texts:
            yield "".join(texts)
            texts = []
        yield block
    if texts or not content:
        yield "".join(texts)
