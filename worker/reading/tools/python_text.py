"""Reads Python's strings, and writes what they hold as it stands in JSON's. Pure."""

import re

from bramley.worker.reading.tools.steps import Source, Steps, Write
from bramley.worker.reading.tools.xml_arguments import escaped

_QUOTES = ('"""', "'''", '"', "'")
_PLAIN = re.compile(r"[^\"'\\]+")
_SINGLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "\n": "",
}  # fmt: skip
_OCTAL = re.compile(r"[0-7]")
_HEX = re.compile(r"[0-9a-fA-F]")
_DIGITS = {"x": 2, "u": 4, "U": 8}


def python_text(source: Source, write: Write, prefix: str) -> Steps[bool | None]:
    """Read strings in a row as one; False where it is cut off, None where there is none."""
    quote = yield from source.take(*_QUOTES)
    if not quote:
        return None
    is_raw = prefix in {"r", "R"}
    while quote:
        if not (yield from _body(source, write, quote, is_raw=is_raw)):
            return False
        yield from source.spaces()
        quote = yield from source.take(*_QUOTES)
    return True


def _body(source: Source, write: Write, quote: str, *, is_raw: bool) -> Steps[bool]:
    while char := (yield from source.peek()):
        if (yield from source.take(quote)):
            return True
        if char == "\\":
            source.advance()
            write((yield from _raw_pair(source) if is_raw else _escape(source)))
        elif piece := source.run(_PLAIN):
            write(escaped(piece))
        else:
            source.advance()
            write(escaped(char))
    return False


def _raw_pair(source: Source) -> Steps[str]:
    char = yield from source.peek()
    source.advance(len(char))
    return escaped("\\" + char)


def _escape(source: Source) -> Steps[str]:
    """Read what follows a backslash; one that begins no escape is itself."""
    char = yield from source.peek()
    if not char:
        return ""
    if _OCTAL.match(char):
        return _character(int((yield from _digits(source, _OCTAL, 3)), 8), "")
    source.advance()
    if char not in _DIGITS:
        return escaped(_SINGLE.get(char, "\\" + char))
    digits = yield from _digits(source, _HEX, _DIGITS[char])
    if len(digits) < _DIGITS[char]:
        return escaped(f"\\{char}{digits}")
    return _character(int(digits, 16), f"\\{char}{digits}")


def _character(code: int, written: str) -> str:
    """Write a character; half a pair as JSON's escape, and what is none as it was written."""
    if 0xD800 <= code < 0xE000:
        return f"\\u{code:04x}"
    return escaped(chr(code) if code < 0x110000 else written)


def _digits(source: Source, digit: re.Pattern[str], most: int) -> Steps[str]:
    found = ""
    while len(found) < most and (char := (yield from source.peek())) and digit.match(char):
        found += char
        source.advance()
    return found
