"""Qwen3-Coder: a parameter's value on lines of its own."""

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.qwen3_coder import FORMAT
from support.tool_calls import TOOLS, check_cuts, check_limits, parsed, read


def test_a_string_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push("Now <tool_call>\n<function=get_weather") == [Text("Now ")]
    assert reader.push(">\n<para") == [CallStart(0, "get_weather")]
    assert reader.push('meter=city>\nA "B"\n') == [CallArguments(0, '{"city": "A \\"B\\"')]
    assert reader.push("C\n</param") == [CallArguments(0, "\\nC")]
    assert reader.push("eter>\n<parameter=days>\n1") == [CallArguments(0, '", "days": ')]
    assert reader.push("2\n</parameter>\n</function>") == [CallArguments(0, "12}"), CallEnd(0)]
    assert reader.push("\n</tool_call>") == []
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("call me", "call me\n"),
        ('{"city": 1', '{"city": 1\n'),
        ("<parameter=city>\nA\n</parameter>\nand so on", '{"city": "A"and so on\n'),
        ("<parameter=a b>\nA\n</parameter>", "<parameter=a b>\nA\n</parameter>\n"),
    ],
)
def test_what_is_no_parameter_comes_as_it_was_written(body: str, arguments: str) -> None:
    text = f"<tool_call>\n<function=get_weather>\n{body}\n</function>\n</tool_call>"
    made = read(FORMAT, text)
    assert made.text == ""
    assert [(one.arguments, one.is_malformed) for one in made.calls] == [(arguments, True)]
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


@pytest.mark.parametrize(
    ("between", "value"),
    [("\n\n", ""), ("\n", ""), ("", ""), ("a", "a"), ("\n\na\n\n", "\na\n"), ("a\n", "a")],
)
def test_one_line_break_at_each_end_is_the_formats(between: str, value: str) -> None:
    body = f"<function=get_weather><parameter=city>{between}</parameter></function>"
    made = read(FORMAT, f"<tool_call>{body}</tool_call>")
    assert made.calls[0].arguments == '{"city": "' + value.replace("\n", "\\n") + '"}'
    assert parsed("qwen3_coder", body)[0]["arguments"] == {"city": value}


def test_a_call_may_be_closed_by_its_run() -> None:
    """Without </function>, where mlx-lm raises."""
    text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call> done"
    made = read(FORMAT, text)
    assert [(call.arguments, call.is_whole) for call in made.calls] == [('{"a": 1}', True)]
    assert made.text == " done"
    check_cuts(FORMAT, text)
    with pytest.raises(ValueError, match="No function"):
        parsed("qwen3_coder", text.removeprefix("<tool_call>").removesuffix("</tool_call> done"))
