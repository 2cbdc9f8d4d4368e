"""What a reader makes of an answer's text, and the contract of readers. Pure.

The laws, for every reader (tests/property/test_reading.py):

1.  However the same text is cut, the events are the same once equal neighbours are joined.
2.  What may still become a marker, or a call, is held back until it cannot, or until ``finish``:
    what a text's beginning says is the beginning of what the text says. So an answer that is cut
    is not finished: what is held back then is never told.
3.  No text is lost: what is not a call after all comes out as ``Text``.
4.  Nothing raises, whatever the text.
5.  A call's events come in order: one CallStart, any CallArguments, and a CallEnd unless the text
    ended before the call did. Calls are numbered from 0 in the order of their starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning. White space beside its markers belongs to neither side."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: its name is known.

    Attributes:
        index: of the call in its answer.
        id: as the model wrote it; empty where the format has none.
    """

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; all of them joined are a JSON object, unless malformed."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is whole.

    Attributes:
        is_malformed: its arguments are no JSON object: they are what the model wrote.
    """

    index: int
    is_malformed: bool = False


Event = Text | Reasoning | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a request describes it.

    Attributes:
        schema: of its arguments, a JSON Schema object.
    """

    name: str
    schema: Mapping[str, Any]
    description: str = ""


class Reader(Protocol):
    """Reads one answer, piece by piece."""

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        ...

    def finish(self) -> Sequence[Event]:
        """The answer has ended and was not cut: give out what was held back."""
        ...


class AnswerReader(Reader, Protocol):
    """Reads the whole of an answer, reasoning too.

    Attributes:
        is_reasoning: whether what comes next belongs to reasoning, or to a marker inside it.
    """

    is_reasoning: bool


class PlainReader:
    """Reads text that is nothing but content."""

    is_reasoning = False

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        return [Text(text)] if text else []

    def finish(self) -> Sequence[Event]:
        """Nothing was held back."""
        return []
