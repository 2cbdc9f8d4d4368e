"""What both formats of Gemma share: calls as call:name{key:value}. Pure.

A value is a string between two delimiters, which knows no escapes; a list in square brackets; an
object in curly ones, whose keys have no quotes; true, false, null; or a number. Strings and keys
in double quotes are read as JSON's, None as null, and any other word as a string. It is turned
into JSON while it is written. From where it stops being such a value it is handed on as it is, to
the end of the call, and the call is malformed.
"""

import re

from bramley.worker.reading.tools.json_stream import contents
from bramley.worker.reading.tools.literals import Notation, literal
from bramley.worker.reading.tools.steps import (
    Source,
    Steps,
    Write,
    Writer,
    closing,
)
from bramley.worker.reading.tools.xml_arguments import escaped

_CALL = "call:"
_NAME = re.compile(r"[^\s{}\[\](),:<>\"']")


class GemmaCalls:
    """Reads the calls between two markers: one, or several behind each other."""

    def __init__(self, delimiter: str, opens: str, closes: str) -> None:
        self._delimiter = delimiter
        self._opens = opens
        self._closes = closes
        self._notation = Notation(
            brackets="{[",
            letter=re.compile(r'[^,{}\[\]<"]'),
            key_letter=re.compile(r'[^:,{}\[\]<"]'),
            text=self._text,
        )

    def read(self, source: Source, out: Writer) -> Steps[bool]:
        """Read from behind the marker that opens; whether a call began."""
        yield from source.spaces()
        if not (yield from self._call(source, out)):
            return False
        while True:
            source.mark()
            yield from source.spaces()
            yield from source.take(",")
            yield from source.spaces()
            if not (yield from self._call(source, out)):
                source.rewind()
                yield from closing(source, out, (self._opens,), self._closes)
                return True

    def _call(self, source: Source, out: Writer) -> Steps[bool]:
        if not (yield from source.take(_CALL)):
            return False
        name = yield from source.word(_NAME)
        if not name or (yield from source.peek()) != "{":
            return False
        source.release()
        out.start(name)
        is_whole = yield from literal(source, out.arguments, self._notation)
        if is_whole or (yield from source.until(out.arguments, (self._closes,))):
            out.end()
        return True

    def _text(self, source: Source, write: Write, _: str) -> Steps[bool | None]:
        if (yield from source.peek()) == '"':
            return (yield from contents(source, write))
        if not (yield from source.take(self._delimiter)):
            return None
        yield from source.until(lambda piece: write(escaped(piece)), (self._delimiter,))
        return bool((yield from source.take(self._delimiter)))
