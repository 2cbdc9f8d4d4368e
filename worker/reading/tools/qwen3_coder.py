"""Calls as Qwen3-Coder writes them: a parameter's value stands on lines of its own. Pure.

    <tool_call>
    <function=f>
    <parameter=a>
    value
    </parameter>
    </function>
    </tool_call>

A value's first and last line breaks are the format's. Nothing is escaped: a value ends at the first
``</parameter>``, so that ``</function>`` and ``</tool_call>`` inside it are its own.
"""

import re
from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks, XmlReader
from bramley.worker.reading.tools.xml_grammar import Layout, calls_grammar

_NAME = re.compile(r"\s*([^\s<>]+)\s*")


def _name(head: str) -> str:
    found = _NAME.fullmatch(head)
    return found[1] if found else ""


def _key(head: str) -> tuple[str, Kinds | None]:
    return _name(head), None


_MARKS = Marks(
    opens="<tool_call>",
    closes="</tool_call>",
    call="<function=",
    head=re.compile(r"\s*[^\s<>]*\s*"),
    head_end=">",
    name_of=_name,
    parameter="<parameter=",
    key_end=">",
    key_of=_key,
    value_end="</parameter>",
    call_end="</function>",
    has_lines=True,
)
_LAYOUT = Layout(
    call="<tool_call>\n<function={name}>\n",
    parameter="<parameter={key}>\n",
    parameter_end="\n</parameter>\n",
    call_end="</function>\n</tool_call>",
    between="\n",
)


class Qwen3Coder:
    """The format of Qwen3-Coder, Qwen3-Next-Coder and Qwen 3.5."""

    name = "qwen3_coder"
    opens = _MARKS.opens
    markers = frozenset({
        "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>",
    })  # fmt: skip

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading."""
        return XmlReader(_MARKS, tools)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls."""
        return calls_grammar(_LAYOUT, self.markers, tools, terminal, many=many)


FORMAT = Qwen3Coder()
