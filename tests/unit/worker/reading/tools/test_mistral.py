"""Mistral's three ways to write calls."""

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.mistral import FORMAT
from support.json_forms import M_LISTED, M_WEATHER, MISTRAL
from support.tool_calls import (
    TOOLS,
    Call,
    accepts,
    parsed,
    quoted_terminal,
    read,
)

PING = "ping[ARGS]{}"
WITH_IDS = f'[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{{"a": 1}}[TOOL_CALLS]{PING}'


def test_ids_in_a_list_are_what_mlx_lm_makes_of_them() -> None:
    for body in MISTRAL.bodies:
        expected = parsed("mistral", body.strip())
        made = read(FORMAT, f"[TOOL_CALLS]{body}")
        assert [one.id for one in made.calls] == [one.get("id", "") for one in expected]


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


def test_the_grammar_has_all_three_ways() -> None:
    grammar = FORMAT.lark(TOOLS, quoted_terminal, many=True)
    for text in (
        f"[TOOL_CALLS]{M_WEATHER}[TOOL_CALLS]{PING}",
        "[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}",
        f"[TOOL_CALLS] {M_LISTED}",
        '[TOOL_CALLS][{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {}}]',
    ):
        assert accepts(grammar, text)
    assert not accepts(grammar, "[TOOL_CALLS]pong[ARGS]{}")
