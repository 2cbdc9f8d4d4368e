"""Parts an answer's reasoning from its content, where markers stand around it. Pure."""

from collections.abc import Sequence
from enum import Enum, auto

from bramley.worker.reading.events import Event, Reader, Reasoning
from bramley.worker.reading.scanner import Scanner
from bramley.worker.reading.tools.steps import SPACE

BETWEEN = "\n\n"  # what parts two sections of reasoning, or two messages


class Sections:
    """Reasoning's text as it is told: trimmed, and a blank line between two sections."""

    def __init__(self) -> None:
        self._white = ""
        self._is_blank = True
        self._has_said = False

    def begin(self) -> None:
        """A section begins."""
        self._white = BETWEEN if self._has_said else ""
        self._is_blank = True

    def push(self, text: str) -> Sequence[Event]:
        """Take more of the section; white space is held back until something follows it."""
        text = text.lstrip(SPACE) if self._is_blank else text
        if not text:
            return []
        whole = self._white + text
        said = whole.rstrip(SPACE)
        self._white = whole[len(said) :]
        self._is_blank = False
        self._has_said = True
        return [Reasoning(said)] if said else []


class _Place(Enum):
    BEFORE = auto()  # nothing but reasoning yet: more of it, or content, may begin
    OPENED = auto()  # a section has been opened, and says nothing yet
    INSIDE = auto()
    CONTENT = auto()  # to the end


class ReasoningReader:
    """Reads reasoning between two markers, and hands what is content to another reader.

    Reasoning opens at the answer's start or straight after reasoning, white space apart. Once
    there is content, markers are content too: they may be of a text about them, or of a call's
    arguments. Where reasoning could open, a marker that closes none is left out; so is one that
    opens what is open.

    Args:
        start: the marker that opens reasoning.
        end: the marker that closes it.
        inner: reads the content.
        is_open: the prompt has opened reasoning.
        opens: what begins a call: at the start of a line it ends reasoning, closed or not.
        is_strict: a grammar says what follows reasoning: it is content, whatever it looks like.

    Attributes:
        is_reasoning: whether the text so far ends inside reasoning: its opening marker is whole,
            its closing one is not.
    """

    def __init__(
        self,
        start: str,
        end: str,
        inner: Reader,
        *,
        is_open: bool,
        opens: Sequence[str] = (),
        is_strict: bool = False,
    ) -> None:
        self._start = start
        self._end = end
        self._inner = inner
        self._scanner = Scanner([end] if is_strict else [end, *opens])
        self._is_strict = is_strict
        self._sections = Sections()
        self._place = _Place.OPENED if is_open else _Place.BEFORE
        self.is_reasoning = is_open
        self._has_marker = is_open
        self._is_line_start = True
        self._held = ""

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        self._held += text
        events: list[Event] = []
        while self._held:
            place = self._place
            if place is _Place.CONTENT:
                events += self._inner.push(self._take())
            elif place is _Place.INSIDE:
                events += self._inside(*self._scanner.push(self._take()))
            elif not self._begin():
                break
        return events

    def finish(self) -> Sequence[Event]:
        """The answer has ended: give out what was held back."""
        events: list[Event] = []
        while self._place is _Place.INSIDE:
            said, marker, rest = self._scanner.finish()
            events += self._inside(said, marker, rest)
            if marker is None:
                return [*events, *self._inner.finish()]
            events += self.push("")
        held = self._take()
        if self._place is _Place.OPENED:
            events += self._sections.push(held)
        else:
            events += self._inner.push(held.lstrip(SPACE) if self._has_marker else held)
        return [*events, *self._inner.finish()]

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held

    def _begin(self) -> bool:
        """Decide what stands before or at the start of a section; False where it is open."""
        text = self._held.lstrip(SPACE)
        is_opened = self._place is _Place.OPENED
        for marker in self._markers(is_opened=is_opened):
            if text.startswith(marker):
                self._held = text[len(marker) :]
                self._has_marker = True
                if marker == self._start:
                    self._open()
                return True
            if marker.startswith(text):
                return False
        if self._has_marker:
            self._held = text
            if not text:
                return False
        self._move(_Place.INSIDE if is_opened else _Place.CONTENT)
        return True

    def _markers(self, *, is_opened: bool) -> Sequence[str]:
        """List what may stand here and is not told."""
        if is_opened:
            return (self._start,)
        if not self._is_strict:
            return (self._start, self._end)
        return () if self._has_marker else (self._start,)

    def _move(self, place: _Place) -> None:
        self._place = place
        self.is_reasoning = place in {_Place.OPENED, _Place.INSIDE}

    def _open(self) -> None:
        self._move(_Place.OPENED)
        self._is_line_start = True
        self._sections.begin()

    def _inside(self, said: str, marker: str | None, rest: str) -> Sequence[Event]:
        events = self._say(said)
        if marker == self._end:
            self._held = rest
            self._move(_Place.BEFORE)
        elif marker is not None and self._is_line_start:
            self._held = marker + rest
            self._move(_Place.CONTENT)
        elif marker is not None:
            self._held = rest
            events = [*events, *self._say(marker)]
        return events

    def _say(self, text: str) -> Sequence[Event]:
        head, line_break, line = text.rpartition("\n")
        is_first = not (head or line_break)
        self._is_line_start = (self._is_line_start or not is_first) and not line.strip(SPACE)
        return self._sections.push(text)


class ContentReader:
    """Reads the answer of a model that does not reason."""

    is_reasoning = False

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        return self._inner.push(text)

    def finish(self) -> Sequence[Event]:
        """The answer has ended."""
        return self._inner.finish()
