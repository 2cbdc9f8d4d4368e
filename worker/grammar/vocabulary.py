"""What the library of grammars has to know of a tokenizer: made once, on first use."""

import json
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from bramley.worker.grammar.words import Words
from bramley.worker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

WHITE: Final = b" \t\r\n"
_DIGITS = tuple(b"%d" % digit for digit in range(10))


class _Tokens:
    """A vocabulary as the library asks for it, which looks at its attributes and not its class."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes], end_id: int) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = sorted(i for i in tokenizer.special_ids if i < len(tokens))
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Cut a text into tokens; only a grammar that forces its own spelling asks for it."""
        return self._tokenizer.encode(text, special_tokens=False)


class Vocabulary:
    """The tokens of one model, by their bytes; may be used from several threads.

    Args:
        tokenizer: whose ``token_bytes`` says what each id stands for.

    Attributes:
        drops_blank: whether a blank that an answer begins with is not told.
        size: ids that the tokenizer knows; the model may have more logits, or fewer.
        end_ids: by the tokenizer. What ends a request is the request's to say.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.RLock()
        self._built: LLTokenizer | None = None
        self._holding: dict[bytes, Sequence[tuple[int, bytes]]] = {}
        self._crossing: dict[tuple[bytes, int], Sequence[int]] = {}
        self.drops_blank = tokenizer.drops_blank
        self.size = tokenizer.vocabulary
        self.end_ids = frozenset(i for i in tokenizer.eos_token_ids if i < self.size)

    def build(self) -> "LLTokenizer":
        """Return the library's own form of it; the first call makes it, which takes a while.

        A second for 49,152 tokens: not on the engine's thread, nor the event loop's.
        """
        # The library takes half a second to import, and most workers never need it.
        from llguidance import LLTokenizer  # noqa: PLC0415

        with self._lock:
            if self._built is None:
                tokens = [self.token_bytes(number) for number in range(self.size)]
                if self.drops_blank:  # a byte's own token for it would be told, and is of no use
                    blank = self._tokenizer.token_id("\u2581")
                    tokens = [
                        b"" if text == b" " and number != blank else text
                        for number, text in enumerate(tokens)
                    ]
                ends = sorted(self.end_ids) or [self.size]
                if not self.end_ids:
                    tokens.append(b"")  # the library wants an end; nothing ever draws this one
                wrapper = _Tokens(self._tokenizer, tokens, ends[0])
                self._built = LLTokenizer(cast("Any", wrapper), eos_token=ends)
                # Made here, for guides ask on the engine's thread.
                _ = self.space_words, self.digit_words, self.digits, self.letter
            return self._built

    def token_bytes(self, number: int) -> bytes:
        """Return the bytes that an id adds to a text; a special token's are its name."""
        return self._tokenizer.token_bytes(number)

    def terminal(self, marker: str) -> str:
        """Say how a marker stands in a Lark grammar: a special token by its id, or quoted."""
        number = self._tokenizer.token_id(marker)
        if number is None or number not in self._tokenizer.special_ids:
            return json.dumps(marker, ensure_ascii=False)
        return f"<[{number}]>"

    @cached_property
    def words(self) -> int:
        """Words of 32 bits that the library's mask of it has."""
        return -(-self.build().vocab_size // 32)

    @cached_property
    def spaces(self) -> frozenset[int]:
        """Tokens that are white space and nothing else."""
        return frozenset(i for i, text in self._texts if text and not text.strip(WHITE))

    @cached_property
    def space_words(self) -> Words:
        """The same as a mask."""
        return self._mask(self.spaces)

    @cached_property
    def digit_words(self) -> Words:
        """A mask of the tokens that begin with a digit."""
        return self._mask(i for i, text in self._texts if text.startswith(_DIGITS))

    @cached_property
    def digits(self) -> Sequence[int]:
        """Tokens that are one digit."""
        return [i for i, text in self._texts if text in _DIGITS]

    @cached_property
    def letter(self) -> int | None:
        """A token that may come in any text, and in no number."""
        return next((i for i, text in self._texts if text == b"a"), None)

    def _mask(self, numbers: Iterable[int]) -> Words:
        bits = np.zeros(self.words * 32, np.uint8)
        bits[list(numbers)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def crossing(self, marker: bytes, known: int) -> Sequence[int]:
        """Find the tokens that end a marker and go on with more than white space.

        Args:
            marker: not empty.
            known: bytes of its beginning that have come already.

        Returns:
            Their ids.
        """
        key = marker, known
        if key not in self._crossing:
            start, last = marker[:known], marker[-1:]
            if last not in self._holding:
                self._holding[last] = [(i, text) for i, text in self._texts if last in text]
            parted = ((i, (start + text).partition(marker)) for i, text in self._holding[last])
            self._crossing[key] = [i for i, (_, _, rest) in parted if rest.strip(WHITE)]
        return self._crossing[key]

    @cached_property
    def _texts(self) -> Sequence[tuple[int, bytes]]:
        special = self._tokenizer.special_ids
        return [(i, self.token_bytes(i)) for i in range(self.size) if i not in special]
