"""Reads calls whose parameters are written one by one between markers. Pure.

A file of its own says for each format which markers those are (`Marks`). Common to all:

- A head (what names a call or a parameter) is read to its end before anything of it is said.
- A string's text is handed on as it comes; any other value when its parameter is whole, because
  only then its type can be told.
- What stands in a call where a parameter should is handed on as it is, up to the call's end: so a
  body that is one JSON object is a call's arguments, and anything else spoils the call.
- Nothing that was held back when the text ended is said of a call that is not whole.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bramley.worker.reading.events import Event, Reader, ToolSpec
from bramley.worker.reading.tools.steps import Source, Steps, Write, Writer, content_reader
from bramley.worker.reading.tools.xml_arguments import (
    STRING,
    Kinds,
    escaped,
    kinds_of_parameter,
    quoted,
    typed,
)

_LONGEST_HEAD = 256  # characters of what names a call or a parameter


@dataclass(frozen=True, slots=True)
class Marks:
    """How a format marks calls.

    Attributes:
        opens: begins a run of calls, or a call where there are no runs.
        closes: ends a run; empty where there are none.
        call: begins a call inside a run; empty where there are none.
        head: what the beginning of a call's head looks like: text that does not is no call.
        head_end: ends a call's head, and is part of it.
        head_stops: end a call's head, and are not part of it.
        parameter: begins a parameter's head.
        key_end: ends it.
        value: begins the value where the head's end does not; may have white space before it.
        value_end: ends the value.
        call_end: ends the call.
        has_lines: a value stands on lines of its own, whose two breaks are not part of it.
        has_cdata: a value may be wrapped as XML does it, and is then taken as it is.
        block: begins and ends arguments that are one JSON object; its head ends as a key's.
        name_of: reads a call's head; empty if there is no name.
        key_of: reads a parameter's head: its key, and its types where the head says them.
    """

    opens: str
    call_end: str
    parameter: str
    key_end: str
    value_end: str
    head: re.Pattern[str]
    name_of: Callable[[str], str]
    key_of: Callable[[str], tuple[str, Kinds | None]]
    closes: str = ""
    call: str = ""
    head_end: str = ""
    head_stops: tuple[str, ...] = ()
    value: str = ""
    has_lines: bool = False
    has_cdata: bool = False
    block: tuple[str, str] | None = None


_CDATA = "<![CDATA["
_CDATA_END = "]]>"


class XmlReader:
    """Reads content in which there may be calls."""

    def __init__(self, marks: Marks, tools: Sequence[ToolSpec]) -> None:
        self._run = _Run(marks, tools)
        self._reader: Reader = content_reader((marks.opens,), self._run.read)

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        return self._reader.push(text)

    def finish(self) -> Sequence[Event]:
        """The answer has ended."""
        self._run.has_ended = True
        return self._reader.finish()


class _Run:
    """Reads from behind the marker that opens calls to the one that closes them."""

    def __init__(self, marks: Marks, tools: Sequence[ToolSpec]) -> None:
        self._marks = marks
        self._tools = {tool.name: tool.schema for tool in tools}
        self.has_ended = False

    def read(self, source: Source, out: Writer) -> Steps[bool]:
        marks = self._marks
        if not marks.closes:
            return (yield from self._call(source, out))
        yield from source.spaces()
        if not (yield from source.take(marks.call)):
            return False
        if not (yield from self._call(source, out)):
            return False
        yield from self._others(source, out)
        return True

    def _others(self, source: Source, out: Writer) -> Steps[None]:
        """Read the run's other calls and its end; what else is among them is content."""
        marks = self._marks
        while True:
            source.mark()
            yield from source.spaces()
            found = yield from source.ahead((marks.call, marks.closes))
            if not found:
                source.rewind()
                found = yield from source.until(out.text, (marks.call, marks.closes, marks.opens))
            source.release()
            if found != marks.call:
                yield from source.take(marks.closes)
                return
            source.advance(len(found))
            source.mark()
            if not (yield from self._call(source, out)):
                source.rewind()
                out.text(found)

    def _call(self, source: Source, out: Writer) -> Steps[bool]:
        marks = self._marks
        stops = (marks.head_end, *marks.head_stops) if marks.head_end else marks.head_stops
        head = yield from _head(source, stops, marks.head)
        name = marks.name_of(head)
        if not name:
            return False
        if marks.head_end:
            source.advance(len(marks.head_end))
        source.release()
        out.start(name)
        yield from self._body(source, out, _Call(self, name, out))
        return True

    def _body(self, source: Source, out: Writer, call: "_Call") -> Steps[None]:
        marks = self._marks
        ends = (marks.call_end, marks.closes) if marks.closes else (marks.call_end,)
        block = marks.block[0] if marks.block else marks.parameter
        while True:
            yield from source.spaces()
            found = yield from source.ahead((marks.parameter, block, *ends))
            if found in ends:
                call.close()
                break
            if found == marks.parameter and (yield from call.parameter(source)):
                continue
            if found and found == block and (yield from call.block(source)):
                continue
            found = yield from source.until(call.write, ends)
            break
        if found:
            yield from source.take(marks.call_end)
            out.end()

    def kinds(self, name: str, key: str) -> Kinds:
        return kinds_of_parameter(key, self._tools.get(name))

    @property
    def marks(self) -> Marks:
        return self._marks


class _Call:
    """Reads what stands between a call's head and its end."""

    def __init__(self, run: _Run, name: str, out: Writer) -> None:
        self._run = run
        self._marks = run.marks
        self._name = name
        self._out = out
        self._begun = ""  # what was written of an object that is to be closed

    def write(self, text: str) -> None:
        """Hand arguments on, unless they were held back when the text ended."""
        if not self._run.has_ended:
            self._out.arguments(text)

    def close(self) -> None:
        """Write the end of the arguments."""
        self.write({"": "{}", "{": "}"}.get(self._begun, ""))

    def parameter(self, source: Source) -> Steps[bool]:
        """Read a parameter; False, and nothing was read, where it is none."""
        marks = self._marks
        source.mark()
        source.advance(len(marks.parameter))
        head = yield from _head(source, (marks.key_end,), _ANYTHING)
        key, kinds = marks.key_of(head)
        source.advance(len(marks.key_end) if head else 0)
        if key and marks.value:
            yield from source.spaces()
            key = key if (yield from source.take(marks.value)) else ""
        if not key or self._begun not in {"", "{"}:
            source.rewind()
            return False
        source.release()
        self.write(f"{', ' if self._begun else '{'}{quoted(key)}: ")
        self._begun = "{"
        yield from self._value(source, self._run.kinds(self._name, key) if kinds is None else kinds)
        return True

    def block(self, source: Source) -> Steps[bool]:
        """Read arguments that are one JSON object; False where they are not the only ones."""
        marks = self._marks
        if self._begun or marks.block is None:
            return False
        source.mark()
        source.advance(len(marks.block[0]))
        head = yield from _head(source, (marks.key_end,), _ANYTHING)
        if not head:
            source.rewind()
            return False
        source.advance(len(marks.key_end))
        source.release()
        self._begun = "block"
        yield from source.until(self.write, marks.block[1:])
        yield from source.take(marks.block[1])
        return True

    def _value(self, source: Source, kinds: Kinds) -> Steps[None]:
        if kinds == STRING:
            self.write('"')
            yield from self._text(source, lambda text: self.write(escaped(text)))
            self.write('"')
            return
        pieces: list[str] = []
        yield from self._text(source, pieces.append)
        self.write(typed("".join(pieces), kinds))

    def _text(self, source: Source, write: Write) -> Steps[None]:
        """Pass a value's text on, and go past its end."""
        marks = self._marks
        ends: tuple[str, ...] = (marks.value_end,)
        if marks.has_lines:
            yield from source.take("\n")
            ends = (f"\n{marks.value_end}", marks.value_end)
        if marks.has_cdata and (yield from self._wrapped(source, write)):
            return
        yield from source.until(write, ends)
        yield from source.take(*ends)

    def _wrapped(self, source: Source, write: Write) -> Steps[bool]:
        source.mark()
        yield from source.spaces()
        if not (yield from source.take(_CDATA)):
            source.rewind()
            return False
        source.release()
        while (yield from source.until(write, (_CDATA_END,))):
            source.mark()
            source.advance(len(_CDATA_END))
            yield from source.spaces()
            if (yield from source.take(self._marks.value_end)):
                source.release()
                break
            source.rewind()
            source.advance(len(_CDATA_END))
            write(_CDATA_END)
        return True


_ANYTHING = re.compile(r".*", re.DOTALL)


def _head(source: Source, stops: Sequence[str], looks: re.Pattern[str]) -> Steps[str]:
    """Read up to a stop; empty where none comes, or what comes does not look like a head."""
    head = ""
    while char := (yield from source.peek()):
        if (yield from source.ahead(stops)):
            return head
        source.advance()
        head += char
        if len(head) > _LONGEST_HEAD or not looks.fullmatch(head):
            break
    return ""


def unquoted(text: str) -> str:
    """Take a name out of the quotes that it may stand in."""
    name = text.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in {'"', "'"}:
        return name[1:-1]
    return name
