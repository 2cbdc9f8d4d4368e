"""Reads calls that are written as JSON, and hands their arguments on while they are written. Pure.

A value's end is found by its brackets and quotes alone, so that a mistake inside it (an escape
that JSON does not know) spoils the value and nothing around it.
"""

import re
from collections.abc import Sequence

from bramley.worker.reading.tools.steps import Source, Steps, Write, Writer

_ARGUMENTS = frozenset({"arguments", "parameters"})
_IN_STRING = re.compile(r'[^"\\]+')
_IN_SCALAR = re.compile(r"[^\s,\]}<\[]+")
_IN_CONTAINER = re.compile(r'[^"{}\[\]<]+')
_OPENS = frozenset("{[")
_CLOSES = frozenset("}]")
_HEX = frozenset("0123456789abcdefABCDEF")
_LOW_SURROGATE = re.compile(r"[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPES = {
    r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\b": "\b", r"\f": "\f",
    r"\"": '"', r"\\": "\\", r"\/": "/",
}  # fmt: skip


class _Call:
    """A call whose name may come after its arguments."""

    def __init__(self, source: Source, out: Writer) -> None:
        self._source = source
        self._out = out
        self._held: list[str] = []
        self.id = ""
        self.has_begun = False
        self.has_arguments = False

    def begin(self, name: str) -> None:
        """The name is known; of two, the first."""
        if not self.has_begun:
            self.has_begun = True
            self._source.release()
            self._out.start(name, self.id)
            self._out.arguments("".join(self._held))

    def write(self, text: str) -> None:
        """Hand arguments on, or hold them back until the name is known."""
        if self.has_begun:
            self._out.arguments(text)
        else:
            self._held.append(text)


def json_calls(source: Source, out: Writer, stops: Sequence[str]) -> Steps[bool]:
    """Read a call, or a list of calls: objects of ``name`` and ``arguments``.

    An ``id`` is the call's if it stands before the name: a call begins with its name.

    Args:
        source: where a call may stand, marked.
        out: what is read.
        stops: outside a string, any of these ends a call, whole or not.

    Yields:
        Where it waits for text.

    Returns:
        Whether a call began.
    """
    yield from source.spaces()
    if not (yield from source.take("[")):
        return (yield from _call(source, out, stops))
    yield from source.spaces()
    has_begun = yield from _call(source, out, stops)
    while has_begun:
        source.mark()
        yield from source.spaces()
        if (yield from source.take("]")):
            break
        if (yield from source.take(",")):
            yield from source.spaces()
            if (yield from _call(source, out, stops)):
                continue
        source.rewind()
        break
    return has_begun


def _call(source: Source, out: Writer, stops: Sequence[str]) -> Steps[bool]:
    if not (yield from source.take("{")):
        return False
    call = _Call(source, out)
    is_whole = yield from _members(source, call, stops)
    if not call.has_begun:
        return False
    if is_whole and not call.has_arguments:
        out.arguments("{}")
    if is_whole or (yield from source.until(_drop, stops)):
        out.end()
    return True


def _members(source: Source, call: _Call, stops: Sequence[str]) -> Steps[bool]:
    """Read an object's members and its closing brace; False where they are not written so."""
    while True:
        yield from source.spaces()
        key = yield from string(source)
        yield from source.spaces()
        if key is None or not (yield from source.take(":")):
            return False
        yield from source.spaces()
        if not (yield from _member(source, call, key, stops)):
            return False
        yield from source.spaces()
        mark = yield from source.take(",", "}")
        if mark != ",":
            return mark == "}"


def _member(source: Source, call: _Call, key: str, stops: Sequence[str]) -> Steps[bool]:
    if key == "name":
        name = yield from string(source)
        if name:
            call.begin(name)
        return bool(name)
    if key == "id" and (yield from source.peek()) == '"':
        call.id = (yield from string(source)) or ""
        return True
    if key in _ARGUMENTS and not call.has_arguments:
        call.has_arguments = True
        return (yield from arguments(source, call.write, stops))
    return (yield from value(source, _drop, stops))


def arguments(source: Source, write: Write, stops: Sequence[str]) -> Steps[bool]:
    """Pass arguments on, a string as what it holds; False where they are cut off."""
    if (yield from source.peek()) == '"':
        return (yield from _decoded(source, write))
    return (yield from value(source, write, stops))


def value(source: Source, write: Write, stops: Sequence[str]) -> Steps[bool]:
    """Pass a value on as it is written; False where a stop or the text's end comes before its."""
    char = yield from source.peek()
    if char == '"':
        return (yield from _quoted(source, write))
    if char in _OPENS:
        return (yield from _container(source, write, stops))
    text = ""
    while (yield from source.peek()) and (piece := source.run(_IN_SCALAR)):
        text += piece
    write(text)
    return bool(text and (yield from source.peek()))


def string(source: Source) -> Steps[str | None]:
    """Read a string; None where there is none, or it is cut off."""
    if (yield from source.peek()) != '"':
        return None
    pieces: list[str] = []
    is_whole = yield from _decoded(source, pieces.append)
    return "".join(pieces) if is_whole else None


def _container(source: Source, write: Write, stops: Sequence[str]) -> Steps[bool]:
    depth = 0
    while char := (yield from source.peek()):
        if char == '"':
            if not (yield from _quoted(source, write)):
                return False
            continue
        if (yield from source.ahead(stops)):
            return False
        source.advance()
        depth += (char in _OPENS) - (char in _CLOSES)
        write(char + source.run(_IN_CONTAINER) if depth else char)
        if depth == 0:
            return True
    return False


def contents(source: Source, write: Write) -> Steps[bool]:
    """Pass a string on as it is written, without its quotes; False where it is cut off."""
    source.advance()
    while char := (yield from source.peek()):
        if char == '"':
            source.advance()
            return True
        if char == "\\":
            write((yield from _pair(source)))
        else:
            write(source.run(_IN_STRING))
    return False


def _quoted(source: Source, write: Write) -> Steps[bool]:
    write('"')
    is_whole = yield from contents(source, write)
    write('"' if is_whole else "")
    return is_whole


def _decoded(source: Source, write: Write) -> Steps[bool]:
    """Pass a string's contents on; False where it is cut off."""
    source.advance()
    while char := (yield from source.peek()):
        if char == '"':
            source.advance()
            return True
        if char == "\\":
            write((yield from _escape(source)))
        else:
            write(source.run(_IN_STRING))
    return False


def _pair(source: Source) -> Steps[str]:
    source.advance()
    char = yield from source.peek()
    source.advance(len(char))
    return "\\" + char


def _escape(source: Source) -> Steps[str]:
    """Read an escape; what has no character of its own stays as it is written."""
    pair = yield from _pair(source)
    if pair != "\\u":
        return _ESCAPES.get(pair, pair)
    digits = yield from _four(source)
    if len(digits) < 4:
        return pair + digits
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code)
    low = (yield from source.take("\\u")) if code < 0xDC00 else ""
    if not low:
        return pair + digits
    more = yield from _four(source)
    if _LOW_SURROGATE.fullmatch(more):
        return chr(0x10000 + (code - 0xD800 << 10) + int(more, 16) - 0xDC00)
    return pair + digits + low + more


def _four(source: Source) -> Steps[str]:
    """Read four hexadecimal digits, or as many as there are."""
    digits = ""
    while len(digits) < 4 and (char := (yield from source.peek())) and char in _HEX:
        digits += char
        source.advance()
    return digits


def _drop(_: str) -> None:
    """Nothing is to know of it."""
