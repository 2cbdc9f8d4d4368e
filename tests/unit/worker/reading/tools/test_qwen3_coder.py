"""Qwen3-Coder: a parameter's value on lines of its own."""

import json
from typing import Any

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.qwen3_coder import FORMAT
from support.tool_calls import (
    TOOLS,
    accepts,
    check_cuts,
    check_limits,
    check_oracle,
    events,
    hard_arguments,
    parsed,
    quoted_terminal,
    read,
)
from support.xml_calls import check_drawn, check_typed, spelled

ENDS = ("\n</parameter>\n", '"', "]", "}")


def inner(name: str, arguments: dict[str, Any]) -> str:
    """What stands between the markers of a call, as the template writes it."""
    body = "".join(
        f"<parameter={key}>\n{spelled(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"\n<function={name}>\n{body}</function>\n"


def written(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{inner(name, arguments)}</tool_call>"


WEATHER = written("get_weather", {"city": "Zürich\n<b>", "days": 2})
CODE = written("run_code", {"source": "a\n\nb", "lines": [1, 2], "options": {"depth": 1}})
PARALLEL = f"{WEATHER}\n{CODE}\n{written('ping', {})}\n"
AMID_TEXT = f"Let me <look>.\n\n{WEATHER}\n\nAnd <tool_calls>.\n{CODE}"
BROKEN = [
    "<tool_call>",
    "<tool_call>\n\n</tool_call>",
    "<tool_call>\n<function=>\n</function>\n</tool_call>",
    "<tool_call>\n<function=a b>\n</function>\n</tool_call>",
    "<tool_call> is a <tool_call><function a marker",
    "<tool_call>\n<function=" + "x" * 600 + ">",
]


@pytest.mark.parametrize(
    "arguments", hard_arguments("</function>", "</tool_call>", "<parameter=x>")
)
def test_b045_hard_arguments_come_back_exactly(arguments: dict[str, Any]) -> None:
    text = written("run_code", arguments)
    made = read(FORMAT, text)
    assert [json.loads(call.arguments) for call in made.calls] == [arguments]
    check_oracle(made, parsed("qwen3_coder", inner("run_code", arguments)))
    assert json.loads(read(FORMAT, "x" + text).calls[0].arguments) == arguments
    by_character = [one.text for one in events(FORMAT, text) if isinstance(one, CallArguments)]
    assert json.loads("".join(by_character)) == arguments


def test_values_have_the_types_of_their_schema() -> None:
    check_typed(FORMAT, lambda key, text: written("typed", {key: text}))


@pytest.mark.parametrize("text", [WEATHER, CODE, PARALLEL, AMID_TEXT, *BROKEN])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_parallel_calls_and_the_text_around_them() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "Let me <look>.\n\n\n\nAnd <tool_calls>.\n"
    assert [call.name for call in made.calls] == ["get_weather", "run_code"]
    made = read(FORMAT, PARALLEL)
    assert made.text == ""
    assert [call.name for call in made.calls] == ["get_weather", "run_code", "ping"]
    assert made.calls[2].arguments == "{}"
    assert all(call.is_whole and not call.id for call in made.calls)


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


@pytest.mark.parametrize("text", BROKEN)
def test_what_has_no_name_is_text(text: str) -> None:
    made = read(FORMAT, text)
    assert made.text == text
    assert made.calls == []


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("call me", "call me\n"),
        ('{"city": 1', '{"city": 1\n'),
        ("<parameter=city>\nA\n</parameter>\nand so on", '{"city": "A"and so on\n'),
        ("<parameter=a b>\nA\n</parameter>", "<parameter=a b>\nA\n</parameter>\n"),
    ],
)
def test_what_is_no_parameter_spoils_its_call_alone(body: str, arguments: str) -> None:
    bad = f"<tool_call>\n<function=get_weather>\n{body}\n</function>\n</tool_call>"
    made = read(FORMAT, f"{bad}\n{WEATHER}")
    assert made.text == ""
    assert [call.is_malformed for call in made.calls] == [True, False]
    assert made.calls[0].arguments == arguments
    check_cuts(FORMAT, bad)
    check_limits(FORMAT, bad)


def test_a_body_that_is_a_json_object_is_the_arguments() -> None:
    made = read(FORMAT, '<tool_call><function=f>\n{"a": [1]}\n</function></tool_call>')
    assert json.loads(made.calls[0].arguments) == {"a": [1]}
    assert not made.calls[0].is_malformed


def test_a_call_may_be_closed_by_its_run() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call> done"
    made = read(FORMAT, text)
    assert [(call.arguments, call.is_whole) for call in made.calls] == [('{"a": 1}', True)]
    assert made.text == " done"
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [True, False])
def test_what_the_grammar_allows_is_read(many: bool) -> None:
    check_drawn(FORMAT, ENDS, many=many, seeds=range(12))


def test_the_grammar_allows_what_the_template_writes() -> None:
    many = FORMAT.lark(TOOLS, quoted_terminal, many=True)
    one = FORMAT.lark(TOOLS, quoted_terminal, many=False)
    assert accepts(many, PARALLEL.strip())
    assert accepts(one, WEATHER)
    assert not accepts(one, PARALLEL.strip())
    assert not accepts(many, written("get_weather", {"days": 2}))
    assert not accepts(many, written("other", {}))
    assert not accepts(many, f"Hm. {WEATHER}")
