"""One model's tokenizer: text to ids and back, and what it knows of its special tokens."""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

from bramley.worker.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from bramley.worker.text.template import Template


class Tokenizer:
    """Wraps mlx-lm's wrapper of a Hugging Face tokenizer; may be used from several threads.

    Attributes:
        eos_token_ids: every end token, by the model's files and by the tokenizer itself.
        vocabulary: how many ids it knows; the model may have more logits.
        newline_ids: of tokens that are line breaks and nothing else.
        token_characters_max: of the longest token: no token stands for more of a text.
        has_chat_template: whether a conversation can be rendered.
        template: that renders it.
        added_ids: of tokens that a text is searched for before it is cut; special ones are.
        special_ids: of those that are no text by themselves, as turns' ends are.
        drops_blank: whether a blank that a text begins with is not read: there stands one before
            every first word, as a sign of its start.
    """

    def __init__(self, wrapper: object) -> None:
        self.wrapper = cast("Any", wrapper)  # mlx-lm gives it no useful types
        self.eos_token_ids: frozenset[int] = frozenset(self.wrapper.eos_token_ids)
        self.vocabulary: int = len(self.wrapper)
        tokens = cast("dict[str, int]", self.wrapper.get_vocab())
        # A byte-level vocabulary writes each byte as one character, so this bounds both kinds.
        self.token_characters_max = max(map(len, tokens))
        self.has_chat_template: bool = self.wrapper.has_chat_template
        self.template = Template(self.wrapper)
        added: Mapping[int, Any] = self.wrapper.added_tokens_decoder
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._is_byte_level = _is_byte_level(self.wrapper)
        self._bytes: dict[int, bytes] = {}
        blank = next((number for piece, number in tokens.items() if piece[:1] == "\u2581"), None)
        self.drops_blank = blank is not None and self.detokenizer().push([blank])[:1] != " "
        newline = _NEWLINE if self._is_byte_level else "\n"
        self.newline_ids = frozenset(
            number
            for piece, number in tokens.items()
            if piece == "<0x0A>" or (piece and not piece.strip(newline))
        )

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Tokenize ``text``, with the special tokens that the tokenizer itself adds, or without."""
        return list(self.wrapper.encode(text, add_special_tokens=special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text, as a whole."""
        return self.wrapper.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

    def token_bytes(self, number: int) -> bytes:
        """The bytes that one id adds to a text; empty for an id that stands for nothing."""
        known = self._bytes.get(number)
        if known is None:
            known = self._bytes[number] = self._read_bytes(number)
        return known

    def token_id(self, token: str) -> int | None:
        """Find a token as the vocabulary writes it; None where it has none, or only for unknown."""
        number: int | None = self.wrapper.convert_tokens_to_ids(token)
        return number if number is not None and self._token(number) == token else None

    def detokenizer(self, shown: Container[int] = ()) -> Detokenizer:
        """Start the text of one answer; of the special ids only ``shown`` are text."""

        def is_skipped(number: int) -> bool:
            return number in self.special_ids and number not in shown

        if self._is_byte_level:
            return ByteDetokenizer(
                lambda number: b"" if is_skipped(number) else self.token_bytes(number)
            )
        return WindowDetokenizer(
            lambda ids: self.decode(ids, skip_special_tokens=False), self._token, is_skipped
        )

    def _token(self, number: int) -> str:
        return self.wrapper.convert_ids_to_tokens(number) or ""

    def _read_bytes(self, number: int) -> bytes:
        token = self._token(number)
        if self._is_byte_level:
            values = [_BYTE_OF.get(character) for character in token]
            return token.encode() if None in values else bytes(cast("list[int]", values))
        if token.startswith("<0x") and token.endswith(">") and len(token) == 6:
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()


def _is_byte_level(wrapper: object) -> bool:
    backend = cast("Any", getattr(wrapper, "backend_tokenizer", None))
    decoder = backend.decoder if backend is not None else None
    return decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel"


def _byte_of() -> dict[str, int]:
    # Byte-level vocabularies write the printable Latin-1 characters as themselves, and every
    # other byte, in order, as a character from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    table = {chr(value): value for value in printable}
    return table | {chr(0x100 + place): value for place, value in enumerate(others)}


_BYTE_OF = _byte_of()
_NEWLINE = next(character for character, value in _BYTE_OF.items() if value == ord("\n"))
