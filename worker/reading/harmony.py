"""Reads the messages in which gpt-oss answers, each with a channel (harmony). Pure.

A message is ``<|start|>ROLE [to=RECIPIENT]<|channel|>CHANNEL [to=RECIPIENT]
[<|constrain|>TYPE]<|message|>TEXT`` and ``<|end|>``, ``<|call|>`` or ``<|return|>``. The prompt
ends behind the first role.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from bramley.worker.reading.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reader,
    Text,
    ToolSpec,
)
from bramley.worker.reading.reasoning import BETWEEN, Sections
from bramley.worker.reading.scanner import Scanner
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.lark import arguments_rule, grammar, quoted
from bramley.worker.reading.tools.steps import SPACE, is_object

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
END = "<|end|>"
CALL = "<|call|>"
RETURN = "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

REASONING_START = f"{CHANNEL}analysis{MESSAGE}"
REASONING_END = END
CONTENT_START = f"{CHANNEL}final{MESSAGE}"
CONTENT_LEAD = f"{START}assistant{CONTENT_START}"

_HEADER_MAX = 256  # characters; a header is one short line
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_NO_TOOLS = frozenset({"all", "assistant", "user"})
# What may stand behind a role that the prompt wrote, before the first marker.
_ROLE_REST = re.compile(r"\s*(?:t|to|to=\S*\s*)?")


class _Kind(Enum):
    HEADER = auto()  # or nothing, between two messages
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class _Strings:
    """Follows the strings of a JSON object: what looks like a marker in one is none."""

    def __init__(self) -> None:
        self.is_inside = False
        self._is_escaped = False
        self._is_object: bool | None = None

    def push(self, text: str) -> None:
        """Take more of the text; one that is no object has no strings."""
        if self._is_object is None and (start := text.lstrip(SPACE)):
            self._is_object = start.startswith("{")
        for character in text if self._is_object else "":
            if self._is_escaped:
                self._is_escaped = False
            elif character == '"':
                self.is_inside = not self.is_inside
            else:
                self._is_escaped = self.is_inside and character == "\\"


class HarmonyReader:
    """Reads an answer of messages.

    The analysis channel is reasoning; a message with a recipient is a call; all else is content.
    A header is never content: one that no text follows is dropped, and one that cannot be read
    makes its text content. Without a marker text is content as well.

    Args:
        tools: that may be called; with none, recipients mean nothing.
        is_open: the prompt ends inside reasoning.

    Attributes:
        is_reasoning: whether the text so far ends inside a message of reasoning: its header is
            whole, its end is not.
    """

    def __init__(self, tools: Sequence[ToolSpec], *, is_open: bool) -> None:
        self._has_tools = bool(tools)
        self._scanner = Scanner(MARKERS)
        self._sections = Sections()
        self._kind = _Kind.REASONING if is_open else _Kind.HEADER
        self.is_reasoning = is_open
        self._header = ""
        self._calls = 0
        self._arguments: list[str] = []
        self._strings = _Strings()
        self._lead = ""  # stands before the next content
        self._has_content = False
        self._is_trimmed = False  # the next content stands behind reasoning

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        events: list[Event] = []
        marker: str | None = ""
        while marker is not None:
            said, marker, text = self._scanner.push(text)
            events += self._say(said)
            if marker is not None:
                events += self._mark(marker)
        return events

    def finish(self) -> Sequence[Event]:
        """The answer has ended: give out what was held back."""
        events: list[Event] = []
        marker: str | None = ""
        while marker is not None:
            said, marker, rest = self._scanner.finish()
            events += self._say(said)
            if marker is not None:
                events += [*self._mark(marker), *self.push(rest)]
        if self._kind is _Kind.CALL and is_object("".join(self._arguments)):
            events.append(CallEnd(self._calls - 1))
        return [*events, *self._leave_header()]

    def _say(self, text: str) -> Sequence[Event]:
        if not text:
            return []
        match self._kind:
            case _Kind.REASONING:
                return self._sections.push(text)
            case _Kind.CONTENT:
                return self._content(text)
            case _Kind.CALL:
                self._arguments.append(text)
                self._strings.push(text)
                return [CallArguments(self._calls - 1, text)]
            case _Kind.HEADER:
                self._header += text
                return [] if _may_be_header(self._header) else self._stray()

    def _mark(self, marker: str) -> Sequence[Event]:
        is_header = self._kind is _Kind.HEADER
        if is_header and marker == MESSAGE:
            return self._open()
        if is_header and marker in {CHANNEL, CONSTRAIN}:
            self._header = self._header.strip(SPACE) + marker
            return []
        is_string = self._kind is _Kind.CALL and self._strings.is_inside
        if is_string or marker in {MESSAGE, CONSTRAIN}:  # inside a text these mean nothing
            return self._say(marker)
        events = self._leave_header() if is_header else self._close()
        self._header = marker if marker in {START, CHANNEL} else ""
        return events

    def _leave_header(self) -> Sequence[Event]:
        """No text follows the header: what no marker began is content after all."""
        header, self._header = self._header, ""
        if self._kind is not _Kind.HEADER or _is_marked(header) or not header.strip(SPACE):
            return []
        self._begin_content()
        self._move(_Kind.HEADER)
        return self._content(header)

    def _stray(self) -> Sequence[Event]:
        header, self._header = self._header, ""
        self._begin_content()
        return self._content(header)

    def _open(self) -> Sequence[Event]:
        """A header is whole: begin its message."""
        recipient, is_analysis = _read_header(self._header)
        self._header = ""
        if recipient and self._has_tools:
            self._move(_Kind.CALL)
            self._arguments.clear()
            self._strings = _Strings()
            self._calls += 1
            return [CallStart(self._calls - 1, recipient)]
        if is_analysis:
            self._move(_Kind.REASONING)
            self._sections.begin()
        else:
            self._begin_content()
        return []

    def _close(self) -> Sequence[Event]:
        """A message's text has ended."""
        kind = self._kind
        self._move(_Kind.HEADER)
        self._is_trimmed = kind is _Kind.REASONING
        if kind is not _Kind.CALL:
            return []
        return [CallEnd(self._calls - 1, is_malformed=not is_object("".join(self._arguments)))]

    def _move(self, kind: _Kind) -> None:
        self._kind = kind
        self.is_reasoning = kind is _Kind.REASONING

    def _begin_content(self) -> None:
        self._move(_Kind.CONTENT)
        self._lead = BETWEEN if self._has_content else ""

    def _content(self, text: str) -> Sequence[Event]:
        if self._is_trimmed:
            text = text.lstrip(SPACE)
        if not text:
            return []
        text, self._lead = self._lead + text, ""
        self._is_trimmed = False
        self._has_content = True
        return [Text(text)]


def _is_marked(header: str) -> bool:
    return any(marker in header for marker in MARKERS)


def _may_be_header(header: str) -> bool:
    if not _is_marked(header):
        return len(header) <= _HEADER_MAX and _ROLE_REST.fullmatch(header) is not None
    return len(header) <= _HEADER_MAX and "\n" not in header.strip(SPACE)


def _read_header(header: str) -> tuple[str, bool]:
    """Read the name of the tool that is called, empty for none; and whether it is analysis."""
    plain = header
    for marker in MARKERS:
        plain = plain.replace(marker, " ")
    found = _RECIPIENT.search(plain)
    recipient = found[1] if found and found[1] not in _NO_TOOLS else ""
    channel = header.rpartition(CHANNEL)[2] if CHANNEL in header else ""
    return recipient.removeprefix("functions."), channel.lstrip(SPACE).startswith("analysis")


class HarmonyFormat:
    """Calls as messages with a recipient. The model's turn ends with one: there is no run."""

    name = "harmony"
    opens = f"{CHANNEL}commentary to="
    markers: frozenset[str] = frozenset(MARKERS)

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading an answer; its reasoning too, for here they cannot be told apart."""
        return HarmonyReader(tools, is_open=False)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write a Lark grammar of a call, behind the prompt or behind reasoning."""
        del many
        start, channel, constrain = terminal(START), terminal(CHANNEL), terminal(CONSTRAIN)
        message, call = terminal(MESSAGE), terminal(CALL)
        rules: dict[str, str] = {}
        for place, tool in enumerate(tools):
            opens = quoted(f"commentary to=functions.{tool.name} ")
            rules[f"call_{place}"] = f'{opens} {constrain} "json" {message} arguments_{place}'
            rules[f"arguments_{place}"] = arguments_rule(tool.schema)
        choices = [f"call_{place}" for place in range(len(tools))]
        return grammar(f'({start} "assistant")? {channel} call {call}', choices, rules)


FORMAT = HarmonyFormat()
