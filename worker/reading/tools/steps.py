"""Readers written as generators: they ask for characters, and wait where there are none yet. Pure.

A generator that looks at nothing but the characters reads the same however the text is cut.
"""

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import NoReturn, TypeVar

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Event, Text

_T = TypeVar("_T")
# Yields where it needs more text.
Steps = Generator[None, None, _T]
Write = Callable[[str], None]

SPACE = " \t\r\n"
_LONGEST_WORD = 512
_SPACES = re.compile(f"[{SPACE}]+")


class Source:
    """Text that arrives in pieces, and a place in it."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._marked: int | None = None
        self._has_ended = False

    def feed(self, text: str) -> None:
        """Take the next piece."""
        seen = self._at if self._marked is None else self._marked
        self._text = self._text[seen:] + text
        self._at -= seen
        if self._marked is not None:
            self._marked = 0

    def end(self) -> None:
        """No text follows."""
        self._has_ended = True

    def mark(self) -> None:
        """Remember this place, and no other."""
        self._marked = self._at

    def release(self) -> None:
        """Go on for good: the marked place is not returned to."""
        self._marked = None

    def rewind(self) -> None:
        """Return to the marked place, which is forgotten."""
        if self._marked is not None:
            self._at, self._marked = self._marked, None

    def peek(self) -> Steps[str]:
        """Wait for the next character; none at the end."""
        while self._at == len(self._text):
            if self._has_ended:
                return ""
            yield
        return self._text[self._at]

    def advance(self, count: int = 1) -> None:
        """Go past characters that were seen."""
        self._at += count

    def run(self, pattern: re.Pattern[str]) -> str:
        """Go past what is here already and matches; perhaps nothing."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def spaces(self) -> Steps[None]:
        """Go past white space."""
        while (yield from self.peek()) and self.run(_SPACES):
            pass

    def word(self, letter: re.Pattern[str]) -> Steps[str]:
        """Read letters of a name, as many as a name may have."""
        word = ""
        while (yield from self.peek()) and len(word) < _LONGEST_WORD:
            found = letter.match(self._text, self._at)
            if found is None:
                break
            word += found.group()
            self.advance()
        return word

    def ahead(self, markers: Sequence[str]) -> Steps[str]:
        """Wait until it is certain which marker stands here, the longest of them; perhaps none."""
        longest = max(map(len, markers), default=0)
        while True:
            here = self._text[self._at : self._at + longest]
            is_open = any(len(here) < len(one) and one.startswith(here) for one in markers)
            if self._has_ended or not is_open:
                break
            yield
        return max((one for one in markers if here.startswith(one)), key=len, default="")

    def take(self, *markers: str) -> Steps[str]:
        """Go past a marker if one stands here; which one, or none."""
        found = yield from self.ahead(markers)
        self.advance(len(found))
        return found

    def until(self, write: Write, markers: Sequence[str]) -> Steps[str]:
        """Pass text on up to a marker, or all of it; which marker stands here now, or none."""
        plain = re.compile(f"[^{re.escape(''.join(one[0] for one in markers))}]+")
        while char := (yield from self.peek()):
            if found := (yield from self.ahead(markers)):
                return found
            piece = self.run(plain)
            if not piece:
                self.advance()
            write(piece or char)
        return ""


class Writer:
    """Collects events; keeps the rules of white space, of calls' numbers and of malformed ones."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._is_content = True
        self._index = -1
        self._arguments: list[str] = []
        # White space of which it is not known whether content follows; None amid content.
        self._blank: list[str] | None = []
        self._is_over = False

    def text(self, text: str) -> None:
        """Write content."""
        if self._blank is not None:
            self._blank.append(text)
            if not text.strip(SPACE):
                return
            text, self._blank = "".join(self._blank), None
        if text:
            self._more(text, is_content=True)

    def start(self, name: str, call_id: str = "") -> None:
        """Begin the next call."""
        self._join()
        self._index += 1
        self._blank = []
        self._arguments = []
        self._add(CallStart(self._index, name, call_id))

    def arguments(self, text: str) -> None:
        """Write arguments of the call that was begun last, unless they were held back to the end.

        Such may be the beginning of a marker, or half an escape.
        """
        if text and not self._is_over:
            self._arguments.append(text)
            self._more(text, is_content=False)

    def end(self) -> None:
        """End the call that was begun last."""
        self._add(CallEnd(self._index, not is_object("".join(self._arguments))))

    def over(self) -> None:
        """No text follows."""
        self._is_over = True

    def close(self) -> None:
        """Nothing more is written."""
        if self._blank and self._index < 0:  # white space and no call: it is the content
            self._more("".join(self._blank), is_content=True)
        self._blank = None

    def take(self) -> list[Event]:
        """Hand out what was written."""
        self._join()
        events, self._events = self._events, []
        return events

    def _more(self, text: str, *, is_content: bool) -> None:
        if self._is_content != is_content:
            self._join()
        self._is_content = is_content
        self._pieces.append(text)

    def _join(self) -> None:
        """Make an event of what was written since the last."""
        text = "".join(self._pieces)
        if text:
            self._events.append(
                Text(text) if self._is_content else CallArguments(self._index, text)
            )
        self._pieces.clear()

    def _add(self, event: CallStart | CallEnd) -> None:
        self._join()
        self._events.append(event)


class StepReader:
    """Reads by a generator."""

    def __init__(self, script: Callable[[Source, Writer], Steps[None]]) -> None:
        self._source = Source()
        self._writer = Writer()
        self._steps = script(self._source, self._writer)

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        self._source.feed(text)
        next(self._steps, None)
        return self._writer.take()

    def finish(self) -> Sequence[Event]:
        """Let the generator end."""
        self._source.end()
        self._writer.over()
        next(self._steps, None)
        self._writer.close()
        return self._writer.take()


# Reads calls from behind what opens them; whether it began one. If not, it is read again as text.
Calls = Callable[[Source, Writer], Steps[bool]]


def content_reader(opens: Sequence[str], calls: Calls) -> StepReader:
    """Read content in which calls stand behind any of ``opens``; what they leave is content."""

    def script(source: Source, out: Writer) -> Steps[None]:
        while marker := (yield from source.until(out.text, opens)):
            source.advance(len(marker))
            source.mark()
            if not (yield from calls(source, out)):
                source.rewind()
                out.text(marker)
            source.release()

    return StepReader(script)


def closing(source: Source, out: Writer, opens: Sequence[str], closes: str) -> Steps[None]:
    """Read up to the marker that closes calls. Text before it is content, and loses no marker."""
    source.mark()
    yield from source.spaces()
    if not (yield from source.take(closes)):
        source.rewind()
        found = yield from source.until(out.text, (closes, *opens))
        source.advance(len(found) if found == closes else 0)
    source.release()


def is_object(text: str) -> bool:
    """Tell whether a text is a JSON object."""
    try:
        value: object = json.loads(text, parse_int=str, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
