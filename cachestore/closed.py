"""Sessions that were closed: what they had stored is not recalled any more.

Their objects stay, for whoever asks with the same tokens; they only are nobody's words. This
is known as long as the store's process lives.
"""

from math import inf

from bramley.cachestore.catalogue import Catalogue

_LOOK_THROUGH_AT = 1024


class Closed:
    """When each was closed, as long as something that it stored is there."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._at_s: dict[tuple[bytes, str], float] = {}
        self._look_through_at = _LOOK_THROUGH_AT

    def __len__(self) -> int:
        return len(self._at_s)

    def close(self, root: bytes, session_key: str, now_s: float) -> bool:
        """Forget what a session stored until now, on the wall clock.

        Returns:
            Whether there was anything.
        """
        closed_s = self.at_s(root, session_key)
        stored = self._catalogue.of_session(root, session_key)
        was_there = any(entry.object.created_s > closed_s for entry in stored)
        if was_there:
            self._at_s[root, session_key] = now_s
        if len(self._at_s) > self._look_through_at:
            self._at_s = {
                name: at_s for name, at_s in self._at_s.items() if self._catalogue.of_session(*name)
            }
            self._look_through_at = max(_LOOK_THROUGH_AT, 2 * len(self._at_s))
        return was_there

    def at_s(self, root: bytes, session_key: str) -> float:
        """When a session was closed; what it stored later counts. Minus infinity if never."""
        return self._at_s.get((root, session_key), -inf)
