"""Sessions that were closed: what they had stored is not recalled any more.

Their objects stay, for whoever asks with the same tokens; they only are nobody's words. This
is known as long as the store's process lives.
"""

from collections.abc import Iterator

from bramley.cachestore.catalogue import Catalogue, Entry, Place

_LOOK_THROUGH_AT = 1024

_Name = tuple[bytes, str]


class Closed:
    """When each was closed, as long as something that it stored is there."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._at_s: dict[_Name, float] = {}

    def __len__(self) -> int:
        return len(self._at_s)

    def close(self, root: bytes, session_key: str, now_s: float) -> bool:
        """Forget what a session stored until now, on the wall clock.

        Returns:
            Whether there was anything.
        """
        was_there = bool(self.since(root, session_key).of_session(root, session_key))
        if was_there:
            self._at_s[root, session_key] = now_s
        if len(self._at_s) > _LOOK_THROUGH_AT:
            self._at_s = {
                name: at_s for name, at_s in self._at_s.items() if self._catalogue.of_session(*name)
            }
        return was_there

    def since(self, root: bytes, session_key: str) -> "Catalogue":
        """What is there of a session, as one who recalls it may see it."""
        closed_s = self._at_s.get((root, session_key))
        return self._catalogue if closed_s is None else _Since(self._catalogue, closed_s)


class _Since(Catalogue):
    """A catalogue in which sessions have only what they stored later than at some time."""

    def __init__(self, whole: Catalogue, after_s: float) -> None:
        super().__init__()
        self._whole = whole
        self._after_s = after_s

    def of_session(self, root: bytes, session_key: str) -> list[Entry]:
        """What it stored since."""
        found = self._whole.of_session(root, session_key)
        return [one for one in found if one.object.created_s > self._after_s]

    def line(self, group: str, chain: bytes, root: bytes) -> Iterator[Place]:
        """As in the whole."""
        return self._whole.line(group, chain, root)
