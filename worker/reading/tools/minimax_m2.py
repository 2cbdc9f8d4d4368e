"""Calls as MiniMax M2 writes them: a run of them between its own markers. Pure.

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="a">value</parameter>
    </invoke>
    </minimax:tool_call>

Nothing is escaped, and white space in a value is the value's.
"""

import re

from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks, unquoted
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout


def _key(head: str) -> tuple[str, Kinds | None]:
    return unquoted(head), None


_MARKS = Marks(
    opens="<minimax:tool_call>",
    closes="</minimax:tool_call>",
    call="<invoke name=",
    head=re.compile(r"[^<>\n]*"),
    head_end=">",
    name_of=unquoted,
    parameter="<parameter name=",
    key_end=">",
    key_of=_key,
    value_end="</parameter>",
    call_end="</invoke>",
)
_LAYOUT = Layout(
    run=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    call='<invoke name="{name}">\n',
    parameter='<parameter name="{key}">',
    parameter_end="</parameter>\n",
    call_end="</invoke>\n",
)

# The format of MiniMax M2 and its successors.
FORMAT = XmlFormat(
    "minimax_m2",
    _MARKS,
    _LAYOUT,
    (
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<invoke name=",
        "</invoke>",
        "<parameter name=",
        "</parameter>",
    ),
)
