"""Calls as Muse Spark writes them: a run of elements in the namespace ``atem``. Pure.

    <atem:function_calls>
    <atem:invoke name="f">
    <atem:parameter name="a">value</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

Nothing is escaped, and white space in a value is the value's. An element may have other attributes
than its name.
"""

import re

from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout

_NAME = re.compile(r'\sname="([^"]+)"')


def _name(head: str) -> str:
    found = _NAME.search(head)
    return found[1] if found else ""


def _key(head: str) -> tuple[str, Kinds | None]:
    return _name(head), None


_MARKS = Marks(
    opens="<atem:function_calls>",
    closes="</atem:function_calls>",
    call="<atem:invoke",
    head=re.compile(r"(\s[^<>]*)?"),
    head_end=">",
    name_of=_name,
    parameter="<atem:parameter",
    key_end=">",
    key_of=_key,
    value_end="</atem:parameter>",
    call_end="</atem:invoke>",
)
_LAYOUT = Layout(
    run=("<atem:function_calls>\n", "</atem:function_calls>"),
    call='<atem:invoke name="{name}">\n',
    parameter='<atem:parameter name="{key}">',
    parameter_end="</atem:parameter>\n",
    call_end="</atem:invoke>\n",
)

# The format of Muse Spark and Muse Glimmer.
FORMAT = XmlFormat(
    "muse_spark",
    _MARKS,
    _LAYOUT,
    (
        "<atem:function_calls>",
        "</atem:function_calls>",
        "<atem:invoke",
        "</atem:invoke>",
        "<atem:parameter",
        "</atem:parameter>",
    ),
)
