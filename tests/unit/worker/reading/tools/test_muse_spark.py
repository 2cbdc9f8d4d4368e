"""Muse Spark: a run of elements in a namespace."""

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.muse_spark import FORMAT
from support.tool_calls import TOOLS, check_cuts, check_limits, check_oracle, parsed, read

OPEN, CLOSE = "<atem:function_calls>", "</atem:function_calls>"


def test_a_string_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push(f'{OPEN}\n<atem:invoke name="get_weather"') == []
    assert reader.push(">\n") == [CallStart(0, "get_weather")]
    assert reader.push('<atem:parameter name="city"> A') == [CallArguments(0, '{"city": " A')]
    assert reader.push("</atem:param") == []
    assert reader.push("eter>\n") == [CallArguments(0, '"')]
    assert reader.push("</atem:invoke>") == [CallArguments(0, "}"), CallEnd(0)]
    assert reader.push(f"\n{CLOSE}") == []
    assert reader.finish() == []


@pytest.mark.parametrize(
    "body",
    [
        '<atem:invoke id="7" name="get_weather"><atem:parameter type="s" name="city" x="">A'
        "</atem:parameter></atem:invoke>",
        '<atem:invoke\nname="get_weather"></atem:invoke>',
        '<atem:invoke name="ping"></atem:invoke><atem:invoke name="ping"></atem:invoke>',
    ],
)
def test_elements_may_have_other_attributes(body: str) -> None:
    text = OPEN + body + CLOSE
    made = read(FORMAT, text)
    check_oracle(made, parsed("muse_spark", body))
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_a_call_that_is_cut_is_none_that_is_whole() -> None:
    """mlx-lm takes it for whole."""
    body = '<atem:invoke name="ping">'
    assert parsed("muse_spark", body) == [{"name": "ping", "arguments": {}}]
    assert [call.is_whole for call in read(FORMAT, OPEN + body).calls] == [False]
