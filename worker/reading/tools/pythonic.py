"""Calls as LFM2 writes them: a list of Python calls, each with named arguments. Pure.

    <|tool_call_start|>[f(text="one", number=2, flag=True, list=[1, {"a": None}]), g()]
    <|tool_call_end|>

Values are turned into JSON while they are written. They are Python's, and true, false and null;
a word that means nothing is a string, a tuple is a list, and strings that follow each other are
one. From where a call stops being such a one it is handed on as it is, and is malformed. A list of
JSON objects in place of the list of calls is read as well.

Of a grammar, values are JSON that Python reads in the same way. Arguments are those that a schema
names and Python can: a tool is refused of which another must be there, or depends on others.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.constraint import json_rule
from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.json_stream import json_calls
from bramley.worker.reading.tools.lark import grammar, listed, quoted
from bramley.worker.reading.tools.literals import Notation, literal
from bramley.worker.reading.tools.python_text import python_text
from bramley.worker.reading.tools.steps import Source, Steps, Writer, closing, content_reader
from bramley.worker.reading.tools.xml_arguments import as_list, as_mapping, resolve

_OPEN = "<|tool_call_start|>"
_CLOSE = "<|tool_call_end|>"
_NAME = re.compile(r"[\w.-]")
_KEY = re.compile(r"\w")
_NOTATION = Notation(
    brackets="{[(",
    letter=re.compile(r"[^,:=(){}\[\]<\"']"),
    key_letter=re.compile(r"[^,:=(){}\[\]<\"']"),
    text=python_text,
    prefixes=frozenset({"r", "R", "u", "U"}),
)


class Pythonic:
    """The format of LFM2."""

    name = "pythonic"
    opens = _OPEN
    markers = frozenset({_OPEN, _CLOSE})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading; the notation says itself what type a value has."""
        return content_reader((_OPEN,), _calls)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of a list, or refuse a tool of which it has no call."""
        rules: dict[str, str] = {}
        calls: list[str] = []
        for at, tool in enumerate(tools):
            members: list[tuple[str, bool]] = []
            for key, schema, is_required in _arguments(tool):
                rule = f"argument_{at}_{len(members)}"
                flag = '"True" | "False" | ' if schema.get("type") == "boolean" else ""
                rules[rule] = f"{quoted(f'{key}=')} ({flag}{rule}_value)"
                rules[f"{rule}_value"] = json_rule(schema)
                members.append((rule, is_required))
            calls.append(f'{quoted(f"{tool.name}(")} {listed(members, quoted(", "))} ")"')
        more = '(", " call)*' if many else ""
        return grammar(f'{terminal(_OPEN)} "[" call {more} "]" {terminal(_CLOSE)}', calls, rules)


def _arguments(tool: ToolSpec) -> list[tuple[str, Mapping[str, Any], bool]]:
    """List a tool's arguments: name, whole schema, and whether it must be there."""
    root = tool.schema
    top = resolve(root, root)
    for word in ("anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "minProperties"):
        if word in top:
            raise InvalidRequest("tools", f"{tool.name}: {word} cannot be enforced in a call")
    properties = as_mapping(top.get("properties"))
    required = [str(key) for key in as_list(top.get("required"))]
    for key in required:
        if not key.isidentifier():
            raise InvalidRequest("tools", f"{tool.name}: the name {key!r} cannot be written")
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    keys = [*properties, *(key for key in required if key not in properties)]
    return [
        (key, {**definitions, **as_mapping(properties.get(key))}, key in required)
        for key in keys
        if key.isidentifier()
    ]


def _calls(source: Source, out: Writer) -> Steps[bool]:
    yield from source.spaces()
    yield from source.take("[")
    yield from source.spaces()
    if (yield from source.peek()) == "{":
        source.rewind()
        source.mark()
        has_begun = yield from json_calls(source, out, (_CLOSE,))
    else:
        has_begun = yield from _list(source, out)
    if has_begun:
        yield from closing(source, out, (_OPEN,), _CLOSE)
    return has_begun


def _list(source: Source, out: Writer) -> Steps[bool]:
    if not (yield from _call(source, out)):
        return False
    while True:
        source.mark()
        yield from source.spaces()
        found = yield from source.take(",", "]")
        yield from source.spaces()
        if found == "," and (yield from _call(source, out)):
            continue
        if found != "]":
            source.rewind()
        return True


def _call(source: Source, out: Writer) -> Steps[bool]:
    name = yield from source.word(_NAME)
    if not name or not (yield from source.take("(")):
        return False
    source.release()
    out.start(name)
    is_whole = yield from _named(source, out)
    if is_whole or (yield from source.until(out.arguments, (_CLOSE,))):
        out.end()
    return True


def _named(source: Source, out: Writer) -> Steps[bool]:
    """Read named arguments up to the closing bracket."""
    before = "{"
    yield from source.spaces()
    while not (yield from source.take(")")):
        key = yield from source.word(_KEY)
        yield from source.spaces()
        if not key or not (yield from source.take("=")):
            out.arguments(before.removeprefix("{") + key)
            return False
        out.arguments(f'{before}"{key}": ')
        before = ", "
        if not (yield from literal(source, out.arguments, _NOTATION)):
            return False
        yield from source.spaces()
        if not (yield from source.take(",")) and (yield from source.peek()) != ")":
            return False
        yield from source.spaces()
    out.arguments("{}" if before == "{" else "}")
    return True


FORMAT = Pythonic()
