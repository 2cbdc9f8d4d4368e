"""Calls as Hermes and Qwen write them: a JSON object between <tool_call> and </tool_call>. Pure.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Arguments are handed on as they are written, once the name is known. "parameters" is read as
"arguments" is; arguments that are a string are taken for the text of an object; a call without
any has ``{}``. What follows the arguments inside the call is not looked at.
"""

from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.json_stream import json_calls
from bramley.worker.reading.tools.lark import arguments_rule, grammar, quoted
from bramley.worker.reading.tools.steps import Source, Steps, Writer, closing, content_reader

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class JsonTools:
    """The format of Hermes, Qwen 2.5, Qwen 3 and many that follow them."""

    name = "json_tools"
    opens = _OPEN
    markers = frozenset({_OPEN, _CLOSE})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading."""
        return content_reader((_OPEN,), _calls)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls."""
        calls = [
            " ".join((
                terminal(_OPEN),
                quoted(f'\n{{"name": {quoted(tool.name)}, "arguments": '),
                f"arguments_{number}",
                quoted("}\n"),
                terminal(_CLOSE),
            ))
            for number, tool in enumerate(tools)
        ]  # fmt: skip
        rules = {f"arguments_{at}": arguments_rule(tool.schema) for at, tool in enumerate(tools)}
        return grammar('call ("\\n" call)*' if many else "call", calls, rules)


def _calls(source: Source, out: Writer) -> Steps[bool]:
    if not (yield from json_calls(source, out, (_CLOSE,))):
        return False
    yield from closing(source, out, (_OPEN,), _CLOSE)
    return True


FORMAT = JsonTools()
