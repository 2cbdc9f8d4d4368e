"""Numbers end: one that has digits enough grows no more where it may end. No clock, no device.

JSON bounds no number, and a model that has written a hundred digits likes to write another. What
the grammar allows is only narrowed here, and never to nothing.
"""

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from bramley.worker.grammar.vocabulary import Vocabulary
from bramley.worker.grammar.words import Words, allow, is_allowed

if TYPE_CHECKING:
    from llguidance import LLMatcher

# In a row: 10^20 is beyond all whole numbers of 64 bits, and a float64 has 17 digits. A token of
# several digits may go beyond.
DIGITS_MAX: Final = 20
EXPONENT_MAX: Final = 3

_PARTS = re.compile(rb'[^"\\]+|["\\]')
_NUMBER = re.compile(rb"[-+.eE0-9]*\Z")
_FULL = re.compile(rb"[0-9]{%d}\Z|[0-9][eE][-+]?[0-9]{%d,}\Z" % (DIGITS_MAX, EXPONENT_MAX))


class Numbers:
    """Follows one answer's numbers: in JSON, or beside it in a format that quotes no texts.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._in_text = False
        self._is_escaped = False
        self._number = b""  # what may be one, and has not ended

    def take(self, token: int) -> None:
        """Follow the answer by the next token."""
        for part in _PARTS.findall(self._vocabulary.token_bytes(token)):
            if self._is_escaped:
                self._is_escaped = False
                part = part[1:]  # noqa: PLW2901 -- the rest of it
            if part == b'"':
                self._in_text = not self._in_text
            self._is_escaped = self._in_text and part == b"\\"
            found = _NUMBER.search(part)
            text = found[0] if found and not self._in_text else b""
            self._number = self._number + text if len(text) == len(part) else text

    def bound(self, matcher: "LLMatcher", into: Words) -> None:
        """Take digits out of a mask if there are enough, and the number may end.

        Where it may not, as ``0.00`` above zero, a digit comes after which it may.

        Args:
            matcher: of the answer, whose mask it is; not changed.
            into: the mask.
        """
        if not _FULL.search(self._number):
            return
        letter = self._vocabulary.letter
        if letter is not None and is_allowed(into, letter):
            return  # digits of a text, in a format that has no quotes
        both = min(len(into), len(self._vocabulary.digit_words))
        others = into.copy()
        others[:both] &= ~self._vocabulary.digit_words[:both]
        if others.any():
            into[:] = others
        elif last := [one for one in self._vocabulary.digits if self._may_end(matcher, one)]:
            into[:] = 0
            for one in last:
                allow(into, one)

    def _may_end(self, matcher: "LLMatcher", digit: int) -> bool:
        after = matcher.deep_copy()
        if not after.consume_token(digit):
            return False
        allowed = np.frombuffer(after.compute_bitmask(), np.uint32)
        return after.is_accepting() or bool((allowed & ~self._vocabulary.digit_words).any())
