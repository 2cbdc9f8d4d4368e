"""Calls as GLM 4.5 to 4.7 write them: a key and a value, each between markers of its own. Pure.

    <tool_call>f<arg_key>a</arg_key><arg_value>value</arg_value></tool_call>

White space may stand beside the name and between markers; in a value it is the value's. A name that
an opening brace follows has arguments that are one JSON object.
"""

import re

from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout


def _key(head: str) -> tuple[str, Kinds | None]:
    return head.strip(), None


_MARKS = Marks(
    opens="<tool_call>",
    head=re.compile(r"\s*[^\s<>{}]*\s*"),
    head_stops=("<arg_key>", "</tool_call>", "{"),
    name_of=str.strip,
    parameter="<arg_key>",
    key_end="</arg_key>",
    key_of=_key,
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
)
_LAYOUT = Layout(
    call="<tool_call>{name}",
    parameter="<arg_key>{key}</arg_key><arg_value>",
    parameter_end="</arg_value>",
    call_end="</tool_call>",
)

# The format of GLM 4.
FORMAT = XmlFormat(
    "glm47",
    _MARKS,
    _LAYOUT,
    ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
