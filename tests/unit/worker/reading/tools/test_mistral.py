"""Mistral's three ways to write calls."""

import json
from typing import Any

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.mistral import FORMAT
from support.tool_calls import (
    TOOLS,
    Call,
    accepts,
    check_cuts,
    check_grammar,
    check_limits,
    check_oracle,
    events,
    hard_arguments,
    parsed,
    quoted_terminal,
    read,
)

WEATHER = 'get_weather[ARGS]{"city": "Zürich", "days": 2}'
PING = "ping[ARGS]{}"
LISTED = '[{"name": "get_weather", "arguments": {"city": "Bern"}}]'
TWO = '[{"name": "ping", "arguments": {}}, {"arguments": {"city": "[A"}, "name": "get_weather"}]'
BODIES = [
    WEATHER,
    WEATHER + PING,
    f"{WEATHER}[TOOL_CALLS]{PING}",
    "ping [ARGS] {}",
    'run-code[ARGS]{"source": "a [TOOL_CALLS]b[ARGS] c", "lines": [[1], {"a": "]}"}]}',
    LISTED,
    f" {TWO}",
    '[{"id": "abcdefghi", "name": "ping", "arguments": {}}]',
    json.dumps([{"name": "ping", "arguments": '{"a": 1}'}]),
]
WITH_IDS = f'[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{{"a": 1}}[TOOL_CALLS]{PING}'
AMID_TEXT = f"See [1], [TOOL].\n[TOOL_CALLS]{WEATHER}\n\nThen [ARGS.[TOOL_CALLS] {TWO} [end]"


@pytest.mark.parametrize("body", BODIES)
def test_calls_are_what_mlx_lm_makes_of_them(body: str) -> None:
    made = read(FORMAT, f"[TOOL_CALLS]{body}")
    expected = parsed("mistral", body.strip())
    check_oracle(made, expected)
    assert [one.id for one in made.calls] == [one.get("id", "") for one in expected]
    assert made.text == ""


@pytest.mark.parametrize("text", [*(f"[TOOL_CALLS]{body}" for body in BODIES), WITH_IDS, AMID_TEXT])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push("[TOOL_CALLS]f[ARGS]") == [CallStart(0, "f")]
    assert reader.push('{"a": "one') == [CallArguments(0, '{"a": "one')]
    assert reader.push('"}') == [CallArguments(0, '"}'), CallEnd(0)]
    assert reader.push('[TOOL_CALLS][{"name": "g"') == [CallStart(1, "g")]
    assert reader.push(', "arguments": {"b') == [CallArguments(1, '{"b')]
    assert reader.finish() == []


def test_ids_are_the_model_s() -> None:
    # mlx-lm takes the id for the name.
    assert parsed("mistral", WITH_IDS)[0]["name"] == "abcdefghi"
    made = read(FORMAT, WITH_IDS)
    assert made.calls == [
        Call("f", "abcdefghi", '{"a": 1}', is_whole=True),
        Call("ping", "", "{}", is_whole=True),
    ]


def test_an_id_behind_the_arguments_comes_too_late() -> None:
    # mlx-lm, which reads a call only when it is whole, has the id.
    body = '[{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]'
    assert parsed("mistral", body)[0]["id"] == "abcdefghi"
    made = read(FORMAT, f"[TOOL_CALLS] {body}")
    assert made.calls == [Call("f", "", '{"a": 1}', is_whole=True)]
    assert made.text == ""


def test_content_around_calls_is_exact() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "See [1], [TOOL].\n\n\nThen [ARGS. [end]"
    assert [one.name for one in made.calls] == ["get_weather", "ping", "get_weather"]


@pytest.mark.parametrize(
    "arguments", hard_arguments("[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]f[ARGS]")
)
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    body = json.dumps(arguments, ensure_ascii=False)
    listed = json.dumps([{"name": "run_code", "arguments": arguments}])
    headed = read(FORMAT, f"[TOOL_CALLS]run_code[ARGS]{body}")
    assert headed.calls == [Call("run_code", "", body, is_whole=True)]
    (call,) = read(FORMAT, f"[TOOL_CALLS]{listed}").calls
    assert json.loads(call.arguments) == arguments
    assert call.is_whole
    assert not call.is_malformed


@pytest.mark.parametrize("arguments", [r'{"p": "\d+"}', '{"a": }', "{'a': 1}", "7", "[1]", "null"])
def test_b045_what_is_no_json_object_is_handed_on_as_written(arguments: str) -> None:
    spoilt = Call("f", "", arguments, is_whole=True, is_malformed=True)
    for text in (
        f"[TOOL_CALLS]f[ARGS]{arguments}\n",
        f'[TOOL_CALLS][{{"name": "f", "arguments": {arguments}}}]',
    ):
        assert read(FORMAT, text).calls == [spoilt]


def test_b045_the_next_marker_ends_arguments_that_are_cut_off() -> None:
    made = read(FORMAT, f'[TOOL_CALLS]f[ARGS]{{"a": [1, [TOOL_CALLS]{PING}')
    assert made.calls == [
        Call("f", "", '{"a": [1, ', is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]


def test_b045_a_number_where_a_string_is_declared_stays_a_number() -> None:
    made = read(FORMAT, '[TOOL_CALLS]get_weather[ARGS]{"city": 8001}')
    assert made.calls == [Call("get_weather", "", '{"city": 8001}', is_whole=True)]


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] nothing to call",
        "[TOOL_CALLS]f{}",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS][{"arguments": {}}]',
        "[TOOL_CALLS]f[CALL_ID]abc",
        f"[TOOL_CALLS]{'x' * 600}[ARGS]{{}}",
        "f[ARGS]{}",
        "[TOOL_CA",
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(20))


def test_the_grammar_has_all_three_ways() -> None:
    grammar = FORMAT.lark(TOOLS, quoted_terminal, many=True)
    for text in (
        f"[TOOL_CALLS]{WEATHER}[TOOL_CALLS]{PING}",
        "[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}",
        f"[TOOL_CALLS] {LISTED}",
        '[TOOL_CALLS][{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {}}]',
    ):
        assert accepts(grammar, text)
    assert not accepts(grammar, "[TOOL_CALLS]pong[ARGS]{}")
