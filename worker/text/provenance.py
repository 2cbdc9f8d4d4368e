"""The ids that answers were generated as, so that the next prompt can have them again. Pure.

A text can be cut into tokens in many ways. A model may have drawn any of them, and the tokenizer
knows one, so an answer that comes back as history would be other ids than those whose state is
stored. Where the tokens of a prompt say the same as kept ones do, byte for byte, the kept ones
stand in for them, up to the last place where both have a border. So the text is never another,
and what follows is tokenized as a part of the whole.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Protocol

from bramley.worker.engine.sharing import common

SEQUENCES_MAX = 1024  # and so of sessions
SESSION_SEQUENCES_MAX = 16  # as many as one request has answers
TOKENS_MAX = 4 << 20
BYTES_MAX = 64 << 20  # of text


class Vocabulary(Protocol):
    """What is asked of a tokenizer."""

    @property
    def added_ids(self) -> frozenset[int]:
        """Ids that a text is searched for before it is cut into others."""
        ...

    def token_bytes(self, number: int) -> bytes:
        """The bytes that one id adds to a text."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text, as a whole."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    root: bytes
    session_key: str
    ids: "array[int]"
    text: bytes

    def goes_on_from(self, other: "_Kept") -> bool:
        """Whether the other one is its beginning, of the same session."""
        return (
            (other.root, other.session_key) == (self.root, self.session_key)
            and self.text.startswith(other.text)
            and self.ids[: len(other.ids)] == other.ids
        )


class Provenance:
    """One model's; of each session the newest sequences, the oldest of all leave first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # the least recently used first
        self._last = 0
        self._tokens = 0
        self._bytes = 0

    def keep(self, root: bytes, session_key: str, ids: Sequence[int]) -> None:
        """Keep a prompt and its answer.

        Args:
            root: of their namespace.
            session_key: of their session; empty for none.
            ids: of both, as the model saw and drew them.
        """
        new = _Kept(root, session_key, array("I", ids), self._text(ids))
        if not new.text or len(new.ids) > TOKENS_MAX or len(new.text) > BYTES_MAX:
            return
        self._drop(new.goes_on_from)
        self._last += 1
        self._kept[self._last] = new
        self._tokens += len(new.ids)
        self._bytes += len(new.text)
        self._bound(new)

    def ids(self, root: bytes, session_key: str, plain: Sequence[int]) -> Sequence[int]:
        """Find what the model itself made of a prompt's beginning.

        Args:
            root: of its namespace; nothing is taken from another.
            session_key: its session's sequences go before others that share as much text.
            plain: the prompt, as the tokenizer cuts it.

        Returns:
            Ids of the same text: ``plain`` itself where nothing better is known.
        """
        text = self._text(plain)
        best, shared = 0, 0
        newest_first = [(n, one) for n, one in reversed(self._kept.items()) if one.root == root]
        for number, one in sorted(
            newest_first, key=lambda item: item[1].session_key != session_key
        ):
            # Its next byte first: a look at the whole would copy it for each.
            if one.text[shared : shared + 1] != text[shared : shared + 1] or shared == len(text):
                continue
            if (longer := common(one.text, text)) > shared:
                best, shared = number, longer
        if not shared:
            return plain
        self._kept.move_to_end(best)
        known = self._kept[best].ids
        mine, theirs = self._border(known, plain, shared)
        ids = [*known[:mine], *plain[theirs:]]
        if ids == list(plain):
            return plain
        return ids if self._reads_the_same(ids, plain) else plain

    def forget(self, root: bytes, session_key: str) -> bool:
        """Forget a session; says whether there was anything."""
        return self._drop(lambda one: (one.root, one.session_key) == (root, session_key))

    def forget_namespace(self, root: bytes) -> None:
        """Forget all that is of a namespace."""
        self._drop(lambda one: one.root == root)

    def _drop(self, is_meant: Callable[[_Kept], bool]) -> bool:
        meant = [number for number, one in self._kept.items() if is_meant(one)]
        for number in meant:
            self._remove(number)
        return bool(meant)

    def _remove(self, number: int) -> None:
        one = self._kept.pop(number)
        self._tokens -= len(one.ids)
        self._bytes -= len(one.text)

    def _bound(self, new: _Kept) -> None:
        if new.session_key:
            name = (new.root, new.session_key)
            own = [n for n, one in self._kept.items() if (one.root, one.session_key) == name]
            for number in own[:-SESSION_SEQUENCES_MAX]:
                self._remove(number)
        while (
            len(self._kept) > SEQUENCES_MAX or self._tokens > TOKENS_MAX or self._bytes > BYTES_MAX
        ):
            self._remove(next(iter(self._kept)))

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._vocabulary.token_bytes, ids))

    def _border(self, known: Sequence[int], plain: Sequence[int], shared: int) -> tuple[int, int]:
        """Find the last place within ``shared`` bytes where both have a border.

        An id that a text is searched for (special tokens are) stands for itself alone: where
        only one of both has it, they part.

        Returns:
            How many ids of each lead there.
        """
        places, plain_places = self._places(known), self._places(plain)
        added = zip_longest(self._added(known, places), self._added(plain, plain_places))
        parted = next((filter(None, pair) for pair in added if pair[0] != pair[1]), ())
        limit = min([shared, *(place for place, _ in parted)])
        borders = set(plain_places)
        mine = bisect_right(places, limit) - 1
        while places[mine] not in borders:
            mine -= 1
        # Ids without text that were drawn after the border are no part of the prompt.
        border = places[mine]
        return bisect_left(places, border), bisect_left(plain_places, border)

    def _places(self, ids: Sequence[int]) -> list[int]:
        """How many bytes are before each id, and before the end."""
        return list(accumulate(map(len, map(self._vocabulary.token_bytes, ids)), initial=0))

    def _added(self, ids: Sequence[int], places: Sequence[int]) -> Iterator[tuple[int, int]]:
        added = self._vocabulary.added_ids
        return ((place, one) for place, one in zip(places, ids, strict=False) if one in added)

    def _reads_the_same(self, ids: Sequence[int], plain: Sequence[int]) -> bool:
        """Whether that holds for whole texts too, of a vocabulary whose tokens are no bytes."""
        decode = self._vocabulary.decode
        return decode(ids, skip_special_tokens=False) == decode(plain, skip_special_tokens=False)
