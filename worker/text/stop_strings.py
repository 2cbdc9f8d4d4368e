"""Finds stop strings in text that arrives in pieces. Pure.

Which match wins does not depend on the pieces: the one that *ends* first, and of those that
end at the same place the longest. Text that may still become a match is held back.
"""

from collections.abc import Sequence


class _Progress:
    """How much of one string the text ends on (Knuth, Morris and Pratt 1977)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.length = 0
        # For each length of a partial match, the longest shorter one that also ends there.
        self._shorter = [0] * (len(string) + 1)
        reached = 0
        for end in range(1, len(string)):
            while reached and string[end] != string[reached]:
                reached = self._shorter[reached]
            reached += string[end] == string[reached]
            self._shorter[end + 1] = reached

    def step(self, character: str) -> bool:
        """Take one more character; return whether the string is complete."""
        length, string = self.length, self.string
        while length and string[length] != character:
            length = self._shorter[length]
        self.length = length + (string[length] == character)
        if self.length < len(string):
            return False
        self.length = self._shorter[self.length]
        return True


class StopStrings:
    """One answer's matcher. A character costs a few comparisons a string, however long it is."""

    def __init__(self, strings: Sequence[str], *, include_stop: bool = False) -> None:
        self._progress = [_Progress(string) for string in dict.fromkeys(strings)]
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Take more text; ``matched`` tells of an end.

        Args:
            text: the next piece.
            may_end: a string that is completed where it may not end the text counts as text.

        Returns:
            What may be shown.
        """
        if not self._progress:
            return text
        whole = self._held + text
        for place, character in enumerate(text, len(self._held) + 1):
            complete = [one.string for one in self._progress if one.step(character)]
            if complete and may_end:
                self.matched, self._held = max(complete, key=len), ""
                return whole[: place if self._include_stop else place - len(self.matched)]
        held = max(one.length for one in self._progress)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def flush(self) -> str:
        """Return what was held back: the text, or this part of it, has ended without a match."""
        text, self._held = self._held, ""
        for one in self._progress:
            one.length = 0
        return text
