"""Bad words as token sequences: how the tokenizer itself would write them in an answer."""

from collections.abc import Iterator, Sequence

from bramley.common.errors import InvalidRequest
from bramley.worker.text.tokenizer import Tokenizer

TOKENS_MAX = 64
_BORDER = "\n"  # no token goes over it, as a rule


def spellings(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return what the answer may not complete for any of ``words`` to appear.

    Raises:
        InvalidRequest: one is longer than TOKENS_MAX tokens, or is none at all.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        ways = [ids for ids in _ways(tokenizer, word) if ids]
        longest = max(map(len, ways), default=0)
        if not 0 < longest <= TOKENS_MAX:
            problem = f"{word[:40]!r} is {longest} tokens, not from 1 to {TOKENS_MAX}"
            raise InvalidRequest("stop.bad_words", problem)
        found.update(dict.fromkeys(map(tuple, ways)))
    return [list(ids) for ids in found]


def _ways(tokenizer: Tokenizer, word: str) -> Iterator[list[int]]:
    """At the start of a text, after a space, and behind other characters."""
    yield tokenizer.encode(word, special_tokens=False)
    yield tokenizer.encode(f" {word}", special_tokens=False)
    # A tokenizer may put a space before every text: what follows on a border has none.
    border = tokenizer.encode(_BORDER, special_tokens=False)
    behind = tokenizer.encode(_BORDER + word, special_tokens=False)
    if behind[: len(border)] == border:
        yield behind[len(border) :]
