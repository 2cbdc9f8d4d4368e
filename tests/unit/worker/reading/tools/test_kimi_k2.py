"""Kimi K2's sections of calls."""

import json

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.kimi_k2 import FORMAT
from support.json_forms import K_END as SECTION_END
from support.json_forms import K_SECTION as SECTION
from support.json_forms import K_WEATHER, KIMI_K2, kimi_call
from support.tool_calls import (
    Call,
    check_cuts,
    check_oracle,
    parsed,
    read,
)


@pytest.mark.parametrize("run", KIMI_K2.bodies)
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


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    head = f"{SECTION}<|tool_call_begin|>functions.f:4<|tool_call_argument_begin|>"
    assert reader.push(head) == [CallStart(0, "f", "functions.f:4")]
    assert reader.push('{"a": "one') == [CallArguments(0, '{"a": "one')]
    assert reader.push('"}') == [CallArguments(0, '"}')]
    assert reader.push("<|tool_call_end|>") == [CallEnd(0)]
    assert reader.push(SECTION_END) == []
    assert reader.finish() == []


def test_a_call_outside_a_section_and_one_without_a_number_are_calls() -> None:
    made = read(FORMAT, kimi_call("functions.f", "{}") + "\nbye")
    assert made.text == "\nbye"
    assert made.calls == [Call("f", "", "{}", is_whole=True)]


def test_arguments_may_be_the_text_of_an_object_or_missing() -> None:
    made = read(FORMAT, SECTION + kimi_call("f:0", json.dumps('{"a": 1}')) + kimi_call("f:1", " "))
    assert [one.arguments for one in made.calls] == ['{"a": 1}', "{}"]
    assert [one.is_whole for one in made.calls] == [True, True]


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
    made = read(
        FORMAT, f"{SECTION}{kimi_call('f:0', arguments)}{kimi_call('g:1', '{}')}{SECTION_END}"
    )
    assert made.text == ""
    assert made.calls == [
        Call("f", "f:0", arguments.replace("} and", "}and"), is_whole=True, is_malformed=True),
        Call("g", "g:1", "{}", is_whole=True),
    ]


def test_a_call_without_its_end_is_ended_by_the_next_or_the_section() -> None:
    begun = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"
    made = read(FORMAT, f"{SECTION}{begun}{kimi_call('g:1', '{}')}{begun}{SECTION_END}")
    assert made.text == ""
    assert [(one.name, one.is_whole) for one in made.calls] == [
        ("f", True),
        ("g", True),
        ("f", True),
    ]


def test_a_call_without_a_name_behind_one_that_has_one_is_content() -> None:
    bad = kimi_call("two words:0", "{}")
    text = f"{SECTION}{K_WEATHER}{bad}{K_WEATHER}{SECTION_END}"
    made = read(FORMAT, text)
    assert made.text == bad
    assert [one.name for one in made.calls] == ["get_weather", "get_weather"]
    check_cuts(FORMAT, text)
