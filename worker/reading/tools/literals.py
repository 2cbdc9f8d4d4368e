"""Turns values that are not written as JSON into JSON, while they are written. Pure.

What does not fit the notation stops it: the rest is the caller's to hand on as it is written.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from bramley.worker.reading.tools.steps import Source, Steps, Write
from bramley.worker.reading.tools.xml_arguments import escaped, quoted

_CLOSING = {"{": "}", "[": "]", "(": ")"}
_WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Notation:
    """A way to write values.

    Attributes:
        brackets: those that open a value of several; a round one is a list.
        letter: of a word or a number; white space around them is not part of them.
        key_letter: of a key without quotes; None where there is no such key.
        text: reads a string, and writes its contents for JSON; False where it is cut off, None
            where there is none.
        prefixes: words that may stand before a string.
    """

    brackets: str
    letter: re.Pattern[str]
    key_letter: re.Pattern[str] | None
    text: Callable[[Source, Write, str], Steps[bool | None]]
    prefixes: frozenset[str] = frozenset()


def literal(source: Source, write: Write, notation: Notation) -> Steps[bool]:
    """Read a value and write it as JSON; False where it is not written as it should be."""
    open_ones: list[str] = []
    while True:
        yield from source.spaces()
        bracket = yield from source.take(*notation.brackets)
        if bracket:
            write("{" if bracket == "{" else "[")
            open_ones.append(_CLOSING[bracket])
            yield from source.spaces()
            is_empty = bool((yield from source.take(open_ones[-1])))
            if not is_empty and not (yield from _key(source, write, notation, open_ones[-1])):
                return False
            if not is_empty:
                continue
            _close(write, open_ones)
        elif not (yield from _single(source, write, notation)):
            return False
        if not (yield from _next(source, write, notation, open_ones)):
            return False
        if not open_ones:
            return True


def _next(source: Source, write: Write, notation: Notation, open_ones: list[str]) -> Steps[bool]:
    """Read what stands between a value and the next, to the end of all at the most."""
    while open_ones:
        yield from source.spaces()
        found = yield from source.take(",", open_ones[-1])
        if not found:
            return False
        if found == ",":
            yield from source.spaces()
            if not (yield from source.take(open_ones[-1])):
                write(", ")
                return (yield from _key(source, write, notation, open_ones[-1]))
        _close(write, open_ones)
    return True


def _close(write: Write, open_ones: list[str]) -> None:
    write("}" if open_ones.pop() == "}" else "]")


def _key(source: Source, write: Write, notation: Notation, closing: str) -> Steps[bool]:
    """Read a key if one is due."""
    if closing != "}":
        return True
    pieces: list[str] = []
    is_whole = yield from notation.text(source, pieces.append, "")
    if is_whole is None and notation.key_letter is not None:
        key = (yield from source.word(notation.key_letter)).strip()
        pieces.append(escaped(key))
        is_whole = bool(key)
    yield from source.spaces()
    if not is_whole or not (yield from source.take(":")):
        write("".join(pieces))
        return False
    write(f'"{"".join(pieces)}": ')
    return True


def _single(source: Source, write: Write, notation: Notation) -> Steps[bool]:
    """Read a string, a word or a number; a word that means nothing is a string."""
    is_whole = yield from _text(source, write, notation, "")
    if is_whole is not None:
        return is_whole
    word = (yield from source.word(notation.letter)).strip()
    if word in notation.prefixes:
        is_whole = yield from _text(source, write, notation, word)
        if is_whole is not None:
            return is_whole
    write(_plain(word) if word else "")
    return bool(word)


def _text(source: Source, write: Write, notation: Notation, prefix: str) -> Steps[bool | None]:
    has_begun = False

    def quoted_write(text: str) -> None:
        nonlocal has_begun
        write(text if has_begun else f'"{text}')
        has_begun = True

    is_whole = yield from notation.text(source, quoted_write, prefix)
    if is_whole:
        write('"' if has_begun else '""')
    return is_whole


def _plain(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    number = word.removeprefix("+").replace("_", "")
    number = re.sub(r"^(-?)\.", r"\g<1>0.", number)
    number = re.sub(r"\.($|[eE])", r".0\1", number)
    return number if _NUMBER.fullmatch(number) else quoted(word)
