"""Calls as LongCat writes them: a key and a value, each between markers of its own. Pure.

    <longcat_tool_call>f
    <longcat_arg_key>a</longcat_arg_key>
    <longcat_arg_value>value</longcat_arg_value>
    </longcat_tool_call>

White space stands between markers; in a value it is the value's. A value whose schema allows
strings alone is handed on while it is written, any other when it is whole: its text says what type
it has. A marker in a string of a list or an object does not end it. In place of all this a JSON
object of "name" and "arguments" is read as well, which is what the first of these models write.
What else stands in a call spoils its arguments.
"""

import re
from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.json_stream import json_calls, value
from bramley.worker.reading.tools.steps import (
    Source,
    Steps,
    Write,
    Writer,
    closing,
    content_reader,
)
from bramley.worker.reading.tools.xml_arguments import (
    STRING,
    Kinds,
    escaped,
    kinds_of_parameter,
    quoted,
    typed,
)
from bramley.worker.reading.tools.xml_grammar import Layout, calls_grammar

_OPEN = "<longcat_tool_call>"
_CLOSE = "</longcat_tool_call>"
_KEY = "<longcat_arg_key>"
_KEY_END = "</longcat_arg_key>"
_VALUE = "<longcat_arg_value>"
_VALUE_END = "</longcat_arg_value>"
_LETTER = re.compile(r"[^\s<>{}]")
_KEY_LETTER = re.compile(r"[^<]")
_LAYOUT = Layout(
    call=f"{_OPEN}{{name}}\n",
    parameter=f"{_KEY}{{key}}{_KEY_END}\n{_VALUE}",
    parameter_end=f"{_VALUE_END}\n",
    call_end=_CLOSE,
    between="\n",
)


class Longcat:
    """The format of LongCat."""

    name = "longcat"
    opens = _OPEN
    markers = frozenset({_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading."""
        return content_reader((_OPEN,), _Calls(tools).read)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls of keys and values."""
        return calls_grammar(_LAYOUT, self.markers, tools, terminal, many=many)


class _Calls:
    """Reads a call by its tool's schema."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas = {tool.name: tool.schema for tool in tools}

    def read(self, source: Source, out: Writer) -> Steps[bool]:
        """Read from behind the marker that opens; whether a call began."""
        yield from source.spaces()
        if (yield from source.peek()) == "{":
            if not (yield from json_calls(source, out, (_CLOSE,))):
                return False
            yield from closing(source, out, (_OPEN,), _CLOSE)
            return True
        name = yield from source.word(_LETTER)
        yield from source.spaces()
        if not name or not (yield from source.ahead((_KEY, _CLOSE))):
            return False
        source.release()
        out.start(name)
        before, is_well = "{", True
        while is_well and (yield from source.take(_KEY)):
            key = (yield from source.word(_KEY_LETTER)).strip()
            out.arguments(f"{before}{quoted(key)}: ")
            before = ", "
            is_well = yield from _value(
                source, out.arguments, kinds_of_parameter(key, self._schemas.get(name))
            )
            yield from source.spaces()
        if is_well and (yield from source.ahead((_CLOSE,))):
            out.arguments("{}" if before == "{" else "}")
        if (yield from source.until(out.arguments, (_CLOSE,))):
            source.advance(len(_CLOSE))
            out.end()
        return True


def _value(source: Source, write: Write, kinds: Kinds) -> Steps[bool]:
    """Read from the end of a key to the end of its value; False where they are cut off."""
    if not (yield from source.take(_KEY_END)):
        return False
    yield from source.spaces()
    if not (yield from source.take(_VALUE)):
        return False
    pieces: list[str] = []
    if kinds == STRING:
        write('"')
        yield from source.until(lambda text: write(escaped(text)), (_VALUE_END,))
    else:
        if "string" not in kinds and (yield from source.peek()) in {"[", "{"}:
            yield from value(source, pieces.append, (_VALUE_END,))
        yield from source.until(pieces.append, (_VALUE_END,))
    if not (yield from source.take(_VALUE_END)):
        return False
    write('"' if kinds == STRING else typed("".join(pieces), kinds))
    return True


FORMAT = Longcat()
