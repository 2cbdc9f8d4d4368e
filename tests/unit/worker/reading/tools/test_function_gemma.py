"""FunctionGemma's calls: Gemma's notation between other markers."""

import json
from typing import Any, cast

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.function_gemma import FORMAT
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


def value(of: Any) -> str:
    """A value as the template writes it."""
    if isinstance(of, str):
        return f"<escape>{of}<escape>"
    if isinstance(of, dict):
        pairs = cast("dict[str, Any]", of).items()
        return "{" + ",".join(f"{key}:{value(one)}" for key, one in pairs) + "}"
    if isinstance(of, list):
        return "[" + ",".join(map(value, cast("list[Any]", of))) + "]"
    return json.dumps(of)


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the template writes it."""
    return f"<start_function_call>call:{name}{value(arguments)}<end_function_call>"


WEATHER = written("get_weather", {"city": 'Zürich, CH: "x"', "days": 2})
PING = written("ping", {})
NESTED = written(
    "run_code", {"source": "a } b", "lines": [1, [2]], "options": {"depth": {"e": "f"}}}
)
AMID_TEXT = f"See <start_of>.\n{WEATHER}\n{PING}\n{NESTED}\n\ndone"


@pytest.mark.parametrize(
    "text",
    [
        WEATHER,
        PING,
        written("f", {"a": True, "b": None, "c": -1.5e3, "d": "x"}),
        "<start_function_call>call:f{a:Bern West,b:2}<end_function_call>",
    ],
)
def test_a_call_is_what_mlx_lm_makes_of_it(text: str) -> None:
    made = read(FORMAT, text)
    check_oracle(made, parsed("function_gemma", text))
    assert made.text == ""


def test_values_inside_each_other_are_read() -> None:
    # mlx-lm ends a call at the first brace, and a value at the first comma.
    (call,) = read(FORMAT, NESTED).calls
    assert json.loads(call.arguments) == {
        "source": "a } b",
        "lines": [1, [2]],
        "options": {"depth": {"e": "f"}},
    }
    assert call.is_whole
    assert not call.is_malformed


@pytest.mark.parametrize("text", [WEATHER, PING, NESTED, AMID_TEXT])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push("<start_function_call>call:f{") == [
        CallStart(0, "f"),
        CallArguments(0, "{"),
    ]
    assert reader.push("a:<escape>one") == [CallArguments(0, '"a": "one')]
    assert reader.push(" two<esc") == [CallArguments(0, " two")]
    assert reader.push("ape>}") == [CallArguments(0, '"}'), CallEnd(0)]
    assert reader.push("<end_function_call>") == []
    assert reader.finish() == []


def test_calls_in_parallel_are_numbered_and_content_around_them_is_exact() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "See <start_of>.\n\n\ndone"
    assert [call.name for call in made.calls] == ["get_weather", "ping", "run_code"]


@pytest.mark.parametrize("arguments", hard_arguments("<end_function_call>", "<esc"))
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    made = read(FORMAT, written("run_code", arguments))
    assert made.text == ""
    (call,) = made.calls
    assert call.is_whole
    assert not call.is_malformed
    assert json.loads(call.arguments) == arguments


def test_b045_what_is_cut_off_is_handed_on() -> None:
    made = read(FORMAT, f"<start_function_call>call:f{{a:[1,<end_function_call>{PING}")
    assert made.calls == [
        Call("f", "", '{"a": [1, ', is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]
    made = read(FORMAT, "<start_function_call>call:f{a:<escape>b}<end_function_call>")
    assert made.calls == [Call("f", "", '{"a": "b}<end_function_call>')]


def test_b045_a_number_where_a_string_is_declared_stays_a_number() -> None:
    made = read(FORMAT, "<start_function_call>call:get_weather{city:8001}<end_function_call>")
    assert made.calls == [Call("get_weather", "", '{"city": 8001}', is_whole=True)]


@pytest.mark.parametrize(
    "text",
    [
        "<start_function_call><end_function_call>",
        "<start_function_call>call:f()<end_function_call>",
        "<start_function_call>call:get_weath",
        "<start_function",
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(12))
