"""Kimi K2's sections of calls."""

import json
from typing import Any

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.kimi_k2 import FORMAT
from support.tool_calls import (
    Call,
    check_cuts,
    check_grammar,
    check_limits,
    check_oracle,
    events,
    hard_arguments,
    parsed,
    read,
)

SECTION = "<|tool_calls_section_begin|>"
SECTION_END = "<|tool_calls_section_end|>"


def call(head: str, arguments: str) -> str:
    """A call as the template writes it."""
    return f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


WEATHER = call("functions.get_weather:0", '{"city": "Zürich", "days": 2}')
CODE = call("functions.run_code:12", '{"source": "a <|tool_call_end|> b", "lines": [[{}], "]"]}')
RUNS = [
    WEATHER,
    WEATHER + CODE,
    f"{WEATHER}\n{CODE}\n",
    call("get_weather:3", '{"city": "Bern"}'),
    call(" functions.get_weather:0\n", ' {"city": "Bern"} '),
    call("functions.ping:1", "{}"),
]
TEXTS = [
    *(f"{SECTION}{run}{SECTION_END}" for run in RUNS),
    f"One <moment>.\n{SECTION}{WEATHER}{SECTION_END}\nAnd {SECTION}\n{CODE}\n{SECTION_END} done.",
]


@pytest.mark.parametrize("run", RUNS)
def test_a_section_is_what_mlx_lm_makes_of_it(run: str) -> None:
    made = read(FORMAT, f"{SECTION}{run}{SECTION_END}")
    assert made.text == ""
    # mlx-lm ends a call at the marker inside a string, and takes what is left for a string.
    expected = parsed("kimi_k2", run.replace("a <|tool_call_end|> b", "a MARKER b"))
    for one in expected:
        if one["arguments"].get("source"):
            one["arguments"]["source"] = "a <|tool_call_end|> b"
    check_oracle(made, expected)
    assert [one.id for one in made.calls] == [one["id"] for one in expected]


@pytest.mark.parametrize("text", TEXTS)
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    head = f"{SECTION}<|tool_call_begin|>functions.f:4<|tool_call_argument_begin|>"
    assert reader.push(head) == [CallStart(0, "f", "functions.f:4")]
    assert reader.push('{"a": "one') == [CallArguments(0, '{"a": "one')]
    assert reader.push('"}') == [CallArguments(0, '"}')]
    assert reader.push("<|tool_call_end|>") == [CallEnd(0)]
    assert reader.push(SECTION_END) == []
    assert reader.finish() == []


def test_content_around_sections_is_exact() -> None:
    made = read(FORMAT, TEXTS[-1])
    assert made.text == "One <moment>.\n\nAnd  done."
    assert [(one.name, one.id) for one in made.calls] == [
        ("get_weather", "functions.get_weather:0"),
        ("run_code", "functions.run_code:12"),
    ]


def test_a_call_outside_a_section_and_one_without_a_number_are_calls() -> None:
    made = read(FORMAT, call("functions.f", "{}") + "\nbye")
    assert made.text == "\nbye"
    assert made.calls == [Call("f", "", "{}", is_whole=True)]


def test_arguments_may_be_the_text_of_an_object_or_missing() -> None:
    made = read(FORMAT, SECTION + call("f:0", json.dumps('{"a": 1}')) + call("f:1", " "))
    assert [one.arguments for one in made.calls] == ['{"a": 1}', "{}"]
    assert [one.is_whole for one in made.calls] == [True, True]


@pytest.mark.parametrize("arguments", hard_arguments("<|tool_call_end|>", SECTION_END))
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    body = json.dumps(arguments, ensure_ascii=False)
    made = read(FORMAT, f"{SECTION}{call('functions.run_code:0', body)}{SECTION_END}")
    assert made.text == ""
    assert made.calls == [Call("run_code", "functions.run_code:0", body, is_whole=True)]


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"p": "\d+"}',
        '{"a": [1, ',
        "{'a': 1}",  # mlx-lm reads Python here as well
        "go",
        "7",
        '{"a": 1} and more',
    ],
)
def test_b045_what_is_no_json_object_is_handed_on_as_written(arguments: str) -> None:
    made = read(FORMAT, f"{SECTION}{call('f:0', arguments)}{call('g:1', '{}')}{SECTION_END}")
    assert made.text == ""
    assert made.calls == [
        Call("f", "f:0", arguments.replace("} and", "}and"), is_whole=True, is_malformed=True),
        Call("g", "g:1", "{}", is_whole=True),
    ]


def test_b045_a_number_where_a_string_is_declared_stays_a_number() -> None:
    made = read(FORMAT, SECTION + call("get_weather:0", '{"city": 8001}'))
    assert made.calls == [Call("get_weather", "get_weather:0", '{"city": 8001}', is_whole=True)]


def test_a_call_without_its_end_is_ended_by_the_next_or_the_section() -> None:
    begun = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"
    made = read(FORMAT, f"{SECTION}{begun}{call('g:1', '{}')}{begun}{SECTION_END}")
    assert made.text == ""
    assert [(one.name, one.is_whole) for one in made.calls] == [
        ("f", True),
        ("g", True),
        ("f", True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"{SECTION}{SECTION_END}",
        f"{SECTION}\n{call('two words:0', '{}')}{SECTION_END}",
        f"{SECTION}<|tool_call_begin|>functions.f:0",
        call("", "{}"),
        call("x" * 600, "{}"),
        "<|tool_call_begin|>f<|tool_call_end|>",
        "<|tool_c",
        SECTION_END,
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


def test_a_call_without_a_name_behind_one_that_has_one_is_content() -> None:
    bad = call("two words:0", "{}")
    text = f"{SECTION}{WEATHER}{bad}{WEATHER}{SECTION_END}"
    made = read(FORMAT, text)
    assert made.text == bad
    assert [one.name for one in made.calls] == ["get_weather", "get_weather"]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(12))
