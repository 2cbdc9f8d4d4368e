"""Finds the first of several markers in text that arrives in pieces. Pure."""

from collections.abc import Sequence


class Scanner:
    """Text in, text without a marker out, until one is met.

    Of markers that start at the same place the longest wins. A marker that may be starting is
    held back.

    Args:
        markers: none empty.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = sorted(markers, key=len, reverse=True)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """Take the next piece.

        Returns:
            Text before a marker, the marker or None, and what follows it: after a marker the rest
            has not been looked at.
        """
        whole, self._held = self._held + text, ""
        place, found = self._first(whole)
        certain = len(whole) - self._open(whole)
        if found is not None and place + len(found) <= certain:
            return whole[:place], found, whole[place + len(found) :]
        if found is not None:  # a longer one may start where it does, or before
            certain = min(certain, place)
        self._held = whole[certain:]
        return whole[:certain], None, ""

    def finish(self) -> tuple[str, str | None, str]:
        """No text follows; returns as ``push`` does, with nothing held back."""
        whole, self._held = self._held, ""
        place, found = self._first(whole)
        if found is None:
            return whole, None, ""
        return whole[:place], found, whole[place + len(found) :]

    def _first(self, text: str) -> tuple[int, str | None]:
        places = [(text.find(marker), marker) for marker in self._markers]
        there = [(place, marker) for place, marker in places if place >= 0]
        return min(there, key=lambda one: one[0], default=(len(text), None))

    def _open(self, text: str) -> int:
        """Characters at the end, at the most, that are the beginning of a longer marker."""
        longest = 0
        for marker in self._markers:
            for size in range(min(len(marker) - 1, len(text)), longest, -1):
                if text.endswith(marker[:size]):
                    longest = size
                    break
        return longest
