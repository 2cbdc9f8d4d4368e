"""Calls as Mistral's models write them: three ways behind [TOOL_CALLS]. Pure.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]
    [TOOL_CALLS]f[ARGS]{"a": 1}
    [TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}

The first is of the older models; of the newer ones each call has its own [TOOL_CALLS], and may
lack it. Nothing closes a call but its own last bracket: arguments that lack it are ended by the
next [TOOL_CALLS], or are cut off. In the older form an id that follows the arguments comes too
late: a call has begun by then.
"""

import re
from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.json_stream import arguments, json_calls
from bramley.worker.reading.tools.lark import arguments_rule, grammar, quoted
from bramley.worker.reading.tools.steps import Source, Steps, Writer, content_reader

_CALLS = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_STOPS = (_CALLS,)
_LETTER = re.compile(r"[^\s\[\]{}()<>\"',]")


class Mistral:
    """The format of Mistral's models."""

    name = "mistral"
    opens = _CALLS
    markers = frozenset({_CALLS, _ID, _ARGUMENTS})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading; JSON says itself what type a value has."""
        return content_reader((_CALLS,), _run)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls in any of the three ways: a model takes its own."""
        rules: dict[str, str] = {}
        heads: list[str] = []
        objects: list[str] = []
        for at, tool in enumerate(tools):
            rules[f"arguments_{at}"] = arguments_rule(tool.schema)
            heads.append(f"{quoted(tool.name)} call_id? {terminal(_ARGUMENTS)} arguments_{at}")
            member = quoted(f'{{"name": {quoted(tool.name)}, "arguments": ')
            objects.append(f"{member} arguments_{at} {quoted('}')}")
        rules["call_id"] = f"{terminal(_ID)} /[a-zA-Z0-9]{{9}}/"
        rules["object"] = " | ".join(objects)
        rules["list"] = '/ ?\\[/ object (", " object)* "]"' if many else '/ ?\\[/ object "]"'
        rules["headed"] = f"call ({terminal(_CALLS)} call)*" if many else "call"
        return grammar(f"{terminal(_CALLS)} (list | headed)", heads, rules)


def _run(source: Source, out: Writer) -> Steps[bool]:
    """Read what follows one marker."""
    yield from source.spaces()
    if (yield from source.peek()) in {"[", "{"}:
        return (yield from json_calls(source, out, _STOPS))
    if not (yield from _headed(source, out)):
        return False
    while True:
        source.mark()
        yield from source.spaces()
        if not (yield from _headed(source, out)):
            source.rewind()
            return True


def _headed(source: Source, out: Writer) -> Steps[bool]:
    """Read a call whose name stands before its arguments."""
    name = yield from _word(source)
    call_id = ""
    if name and (yield from source.take(_ID)):
        call_id = yield from _word(source)
    if not name or not (yield from source.take(_ARGUMENTS)):
        return False
    source.release()
    out.start(name, call_id)
    yield from source.spaces()
    is_whole = yield from arguments(source, out.arguments, _STOPS)
    if is_whole or (yield from source.until(out.arguments, _STOPS)):
        out.end()
    return True


def _word(source: Source) -> Steps[str]:
    """Read a name or an id, and the white space behind it."""
    word = yield from source.word(_LETTER)
    yield from source.spaces()
    return word


FORMAT = Mistral()
