"""Calls as Kimi K3 writes them: elements of special tokens, each value with its type. Pure.

    <|open|>tools<|sep|>
    <|open|>call tool="f" index="1"<|sep|>
    <|open|>argument key="a" type="string"<|sep|>value<|close|>argument<|sep|>
    <|close|>call<|sep|>
    <|close|>tools<|sep|>

It is written without the line breaks. The type that is written is the value's, whatever the tool's
schema says. In place of arguments there may be one JSON object, in an element ``json``. Names have
``&`` and ``"`` escaped; values have nothing escaped.
"""

import re

from bramley.worker.reading.tools.xml_arguments import ANY, STRING, Kinds
from bramley.worker.reading.tools.xml_calls import Marks
from bramley.worker.reading.tools.xml_format import XmlFormat
from bramley.worker.reading.tools.xml_grammar import Layout

_ATTRIBUTE = re.compile(r'\s(\w+)="([^"]*)"')


def _attributes(head: str) -> dict[str, str]:
    return {
        name: value.replace("&quot;", '"').replace("&amp;", "&")
        for name, value in _ATTRIBUTE.findall(head)
    }


def _name(head: str) -> str:
    return _attributes(head).get("tool", "")


def _key(head: str) -> tuple[str, Kinds | None]:
    attributes = _attributes(head)
    is_string = attributes.get("type", "string") == "string"
    return attributes.get("key", ""), STRING if is_string else ANY


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;")


_MARKS = Marks(
    opens="<|open|>tools<|sep|>",
    closes="<|close|>tools<|sep|>",
    call="<|open|>call",
    head=re.compile(r"(\s[^<\n]*)?"),
    head_end="<|sep|>",
    name_of=_name,
    parameter="<|open|>argument",
    key_end="<|sep|>",
    key_of=_key,
    value_end="<|close|>argument<|sep|>",
    call_end="<|close|>call<|sep|>",
    block=("<|open|>json", "<|close|>json<|sep|>"),
)
_LAYOUT = Layout(
    run=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    call='<|open|>call tool="{name}" index="{index}"<|sep|>',
    parameter='<|open|>argument key="{key}" type="{type}"<|sep|>',
    parameter_end="<|close|>argument<|sep|>",
    call_end="<|close|>call<|sep|>",
    named=_escaped,
)

# The format of Kimi K3.
FORMAT = XmlFormat("kimi_k3", _MARKS, _LAYOUT, ("<|open|>", "<|sep|>", "<|close|>"))
