"""Calls as MiniCPM5 writes them: XML elements, and hard text in a CDATA section. Pure.

    <function name="f"><param name="a">value</param></function>

The template wraps a value that has ``<``, ``&`` or a line break: ``<![CDATA[a < b]]>``. Text that
is not wrapped is taken as it is, too: no entity is decoded. A section ends at the first ``]]>``
that the parameter's end follows, so that both ``]]>`` and ``</param>`` may stand inside one.
"""

import re

from bramley.worker.reading.tools.xml_arguments import Kinds
from bramley.worker.reading.tools.xml_calls import Marks, unquoted
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout


def _key(head: str) -> tuple[str, Kinds | None]:
    return unquoted(head), None


_MARKS = Marks(
    opens="<function name=",
    head=re.compile(r"[^<>\n]*"),
    head_end=">",
    name_of=unquoted,
    parameter="<param name=",
    key_end=">",
    key_of=_key,
    value_end="</param>",
    call_end="</function>",
    has_cdata=True,
)
_LAYOUT = Layout(
    call='<function name="{name}">',
    parameter='<param name="{key}">',
    parameter_end="</param>",
    call_end="</function>",
    between="\n",
    wrap=("<![CDATA[", "]]>"),
    unsafe=r"<&\n",
)

# The format of MiniCPM5.
FORMAT = XmlFormat(
    "minicpm5", _MARKS, _LAYOUT, ("<function name=", "</function>", "<param name=", "</param>")
)
