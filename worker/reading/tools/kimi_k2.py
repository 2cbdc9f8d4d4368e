"""Calls as Kimi K2 writes them: a section of calls, each of an id and a JSON object. Pure.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
    <|tool_call_end|><|tool_calls_section_end|>

without line breaks. The id is what the model wrote, "functions.f:0"; the name is what it names.
"f:0" and "f" are read as well; the latter has no id. A call outside a section is a call. What
follows arguments that are whole, up to the call's end, spoils them; a call without any has ``{}``.
"""

import re
from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.json_stream import arguments
from bramley.worker.reading.tools.lark import arguments_rule, grammar, quoted
from bramley.worker.reading.tools.steps import Source, Steps, Writer, closing, content_reader

_SECTION = "<|tool_calls_section_begin|>"
_SECTION_END = "<|tool_calls_section_end|>"
_CALL = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"
_ENDS = (_CALL_END, _CALL, _SECTION_END)
_IN_HEAD = re.compile(r'[^<>{}"]')
_HEAD = re.compile(r"(?:functions\.)?([^\s:]+)(:\d+)?")


class KimiK2:
    """The format of Kimi K2."""

    name = "kimi_k2"
    opens = _SECTION
    markers = frozenset({_SECTION, _SECTION_END, _CALL, _ARGUMENTS, _CALL_END})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading; JSON says itself what type a value has."""
        return content_reader((_SECTION, _CALL), _run)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of a section."""
        calls = [
            " ".join((
                terminal(_CALL),
                quoted(f"functions.{tool.name}:"),
                "NUMBER",
                terminal(_ARGUMENTS),
                f"arguments_{number}",
                terminal(_CALL_END),
            ))
            for number, tool in enumerate(tools)
        ]  # fmt: skip
        rules = {f"arguments_{at}": arguments_rule(tool.schema) for at, tool in enumerate(tools)}
        start = f"{terminal(_SECTION)} {'call+' if many else 'call'} {terminal(_SECTION_END)}"
        return grammar(start, calls, {**rules, "NUMBER": "/[0-9]{1,4}/"})


def _run(source: Source, out: Writer) -> Steps[bool]:
    """Read a section, or a call outside one."""
    yield from source.spaces()
    yield from source.take(_CALL)
    if not (yield from _call(source, out)):
        return False
    while True:
        source.mark()
        yield from source.spaces()
        if not (yield from source.take(_CALL)) or not (yield from _call(source, out)):
            source.rewind()
            yield from closing(source, out, (_SECTION, _CALL), _SECTION_END)
            return True


def _call(source: Source, out: Writer) -> Steps[bool]:
    head = yield from source.word(_IN_HEAD)
    found = _HEAD.fullmatch(head.strip())
    if not found or not (yield from source.take(_ARGUMENTS)):
        return False
    source.release()
    out.start(found[1], found[0] if found[2] else "")
    yield from source.spaces()
    if (yield from source.ahead(_ENDS)):
        out.arguments("{}")
    elif (yield from arguments(source, out.arguments, _ENDS)):
        yield from source.spaces()
    marker = yield from source.until(out.arguments, _ENDS)
    if marker:
        source.advance(len(marker) if marker == _CALL_END else 0)
        out.end()
    return True


FORMAT = KimiK2()
