"""Leaves out the markers that stand around content and are no part of it. Pure."""

from collections.abc import Sequence

from bramley.worker.reading.events import Event, Reader
from bramley.worker.reading.scanner import Scanner


class FrameReader:
    """Reads content without its frames.

    Args:
        frames: what is left out, wherever it stands.
        inner: reads the rest.
    """

    def __init__(self, frames: Sequence[str], inner: Reader) -> None:
        self._scanner = Scanner(frames)
        self._inner = inner

    def push(self, text: str) -> Sequence[Event]:
        """Take the next piece."""
        events: list[Event] = []
        frame: str | None = ""
        while frame is not None:
            said, frame, text = self._scanner.push(text)
            events += self._inner.push(said)
        return events

    def finish(self) -> Sequence[Event]:
        """The answer has ended: give out what was held back."""
        events: list[Event] = []
        frame: str | None = ""
        while frame is not None:
            said, frame, rest = self._scanner.finish()
            events += self._inner.push(said)
            events += self.push(rest)
        return [*events, *self._inner.finish()]
