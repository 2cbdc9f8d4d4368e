"""Token ids to text, a few at a time, so that the pieces join to what a whole decode gives.

Every piece ends on a whole character: what may still change is held back until it cannot, or
until ``finish``.
"""

import codecs
import re
from collections.abc import Callable, Iterable
from typing import Protocol

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """One answer's text in the making."""

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is now certain."""
        ...

    def finish(self) -> str:
        """Return what was held back. Nothing may be pushed afterwards."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies, where each token is a run of bytes whatever stands beside it."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is now certain."""
        return self._decoder.decode(b"".join(map(self._token_bytes, ids)))

    def finish(self) -> str:
        """Return what was held back: the marks of an incomplete character, if any."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For vocabularies whose tokens read differently beside others, as SentencePiece's.

    New ids are decoded behind the last ones that were given out, and what those read alone is
    taken off. A run of byte tokens is held until it ends: one more byte can change them all.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        token: Callable[[int], str],
        is_skipped: Callable[[int], bool],
    ) -> None:
        self._decode = decode
        self._token = token
        self._is_skipped = is_skipped
        self._all: list[int] = []
        self._context_start = 0
        self._pending_start = 0
        self._given = 0

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is now certain."""
        # A skipped id would be a context that reads as the start of a text.
        self._all.extend(number for number in ids if not self._is_skipped(number))
        if len(self._all) == self._pending_start or _BYTE_TOKEN.fullmatch(
            self._token(self._all[-1])
        ):
            return ""
        context = self._decode(self._all[self._context_start : self._pending_start])
        both = self._decode(self._all[self._context_start :])
        if both.endswith(_REPLACEMENT) or not both.startswith(context):
            return ""
        self._context_start, self._pending_start = self._pending_start, len(self._all)
        self._given += len(both) - len(context)
        return both[len(context) :]

    def finish(self) -> str:
        """Return what was held back, by a decode of the whole."""
        return self._decode(self._all)[self._given :]
