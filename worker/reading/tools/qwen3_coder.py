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

from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout

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

# The format of Qwen3-Coder and Qwen 3.5.
FORMAT = XmlFormat(
    "qwen3_coder",
    _MARKS,
    _LAYOUT,
    ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
)
