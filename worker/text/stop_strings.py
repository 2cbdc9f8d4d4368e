"""Finds stop strings in text that arrives in pieces. Pure.

Which match wins does not depend on the pieces: the one that *ends* first, and of those that
end at the same place the longest. Text that may still become a match is held back.
"""

from collections.abc import Sequence


class StopStrings:
    """One answer's matcher."""

    def __init__(self, strings: Sequence[str], *, include_stop: bool = False) -> None:
        self._strings = strings
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text and return what may be shown; ``matched`` tells of an end."""
        if not self._strings:
            return text
        text = self._held + text
        ends: list[tuple[int, int, str]] = [
            (start + len(string), -len(string), string)
            for string in self._strings
            if (start := text.find(string)) >= 0
        ]
        if ends:
            end, _, matched = min(ends)
            self.matched, self._held = matched, ""
            return text[: end if self._include_stop else end - len(matched)]
        held = max(_overlap(text, string) for string in self._strings)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return what was held back: the text has ended without a match."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, string: str) -> int:
    """Return how much of the text's end is a beginning of ``string``, short of all of it."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
