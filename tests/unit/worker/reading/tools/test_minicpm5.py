"""MiniCPM5: XML elements, and hard text in a CDATA section."""

import json

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.minicpm5 import FORMAT
from support.tool_calls import TOOLS, check_cuts, check_limits, check_oracle, parsed, read


def written(value: str) -> str:
    return f'<function name="get_weather"><param name="city">{value}</param></function>'


def city(value: str) -> str:
    made = read(FORMAT, written(value))
    assert made.text == ""
    assert len(made.calls) == 1
    return json.loads(made.calls[0].arguments)["city"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("<![CDATA[a < b && c]]>", "a < b && c"),
        (" <![CDATA[ a\n]]>\n", " a\n"),
        ("<![CDATA[]]>", ""),
        ("<![CDATA[a]]]]>", "a]]"),
        ("<![CDATA[a]]>b]]>", "a]]>b"),
        ("&lt;b&gt;", "&lt;b&gt;"),
        ("a <b> c", "a <b> c"),
        ("<![CDATA", "<![CDATA"),
    ],
)
def test_text_is_taken_as_it_is(value: str, text: str) -> None:
    assert city(value) == text
    check_oracle(read(FORMAT, written(value)), parsed("minicpm5", written(value)))
    check_cuts(FORMAT, written(value))
    check_limits(FORMAT, written(value))


def test_a_section_may_have_the_markers_that_end_things() -> None:
    """mlx-lm ends the value at the first </param>, and the call at the first </function>."""
    value = "<![CDATA[a</param></function>]]></b>]]>"
    assert city(value) == "a</param></function>]]></b>"
    check_cuts(FORMAT, written(value))
    check_limits(FORMAT, written(value))
    assert parsed("minicpm5", written(value))[0]["arguments"] == {"city": "<![CDATA[a"}


def test_white_space_at_the_ends_of_unwrapped_text_is_kept() -> None:
    """mlx-lm takes it off."""
    assert city(" a ") == " a "
    assert parsed("minicpm5", written(" a "))[0]["arguments"] == {"city": "a"}


def test_a_section_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push('<function name="get_weather">') == [CallStart(0, "get_weather")]
    assert reader.push('<param name="city"><![CDA') == [CallArguments(0, '{"city": "')]
    assert reader.push("TA[a<b") == [CallArguments(0, "a<b")]
    assert reader.push("]]") == []
    assert reader.push("] ]]>") == [CallArguments(0, "]]] ")]
    assert reader.push(" </param>") == [CallArguments(0, '"')]
    assert reader.push("</function>") == [CallArguments(0, "}"), CallEnd(0)]


def test_a_section_of_another_type_is_read_by_it() -> None:
    text = written("A").replace(
        "</function>", '<param name="days"><![CDATA[3]]></param></function>'
    )
    assert json.loads(read(FORMAT, text).calls[0].arguments) == {"city": "A", "days": 3}
