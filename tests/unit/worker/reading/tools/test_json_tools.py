"""JSON between <tool_call> and </tool_call>."""

import json
import time

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text, ToolSpec
from bramley.worker.reading.tools.json_tools import FORMAT
from support.json_forms import hermes
from support.tool_calls import (
    Call,
    accepts,
    quoted_terminal,
    read,
)


def called(inner: str) -> list[Call]:
    """The calls of what stands between the markers; there is no content."""
    made = read(FORMAT, f"<tool_call>{inner}</tool_call>")
    assert made.text == ""
    return made.calls


WEATHER = hermes("get_weather", {"city": "Zürich", "days": 2})
PARALLEL = f"{WEATHER}\n{hermes('ping', {})}\n"


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push('<tool_call>\n{"name": "f"') == [CallStart(0, "f")]
    assert reader.push(', "arguments": {"a": "one') == [CallArguments(0, '{"a": "one')]
    assert reader.push(' two"') == [CallArguments(0, ' two"')]
    assert reader.push("}") == [CallArguments(0, "}")]
    assert reader.push("}") == [CallEnd(0)]
    assert reader.push("\n</tool_call>") == []
    assert reader.finish() == []


def test_arguments_before_the_name_are_held_back() -> None:
    reader = FORMAT.reader([])
    assert reader.push('<tool_call>{"arguments": {"a": 1}, "nam') == []
    found = reader.push('e": "f"}')
    assert found == [CallStart(0, "f"), CallArguments(0, '{"a": 1}'), CallEnd(0)]


def test_calls_in_parallel_are_numbered_and_white_space_between_them_is_dropped() -> None:
    made = read(FORMAT, "\n" + PARALLEL)
    assert made.text == ""
    assert [(call.name, call.arguments) for call in made.calls] == [
        ("get_weather", '{"city": "Z\\u00fcrich", "days": 2}'),
        ("ping", "{}"),
    ]


def test_arguments_may_be_the_text_of_an_object() -> None:
    inner = json.dumps({"city": 'a "b" \\ \U0001f600', "days": 1})
    for body in (json.dumps(inner), json.dumps(inner, ensure_ascii=False)):
        (call,) = called(f'{{"name": "get_weather", "arguments": {body}}}')
        assert call == Call("get_weather", "", inner, is_whole=True)


def test_parameters_are_arguments_and_a_call_without_any_has_none() -> None:
    (call,) = called('{"name": "f", "parameters": {"a": 1}}')
    assert call == Call("f", "", '{"a": 1}', is_whole=True)
    (call,) = called('{"name": "f"}')
    assert call == Call("f", "", "{}", is_whole=True)


# mlx-lm raises on each of these.
MALFORMED = [
    r'{"p": "\d+"}',
    '{"s": "one\ntwo"}',
    '{"a": tru}',
    '{"a": }',
    '{"a": 1,}',
    "{'a': 1}",
    '{"a": NaN}',
    "[1, 2]",
    "7",
    "null",
    "{" * 30 + "}" * 30,
    "[" * 5_000 + "]" * 5_000,
]


@pytest.mark.parametrize("arguments", MALFORMED)
def test_b045_what_is_no_json_object_is_handed_on_as_written(arguments: str) -> None:
    (call,) = called(f'\n{{"name": "f", "arguments": {arguments}}}\n')
    assert call == Call("f", "", arguments, is_whole=True, is_malformed=True)


def test_b045_an_end_marker_ends_arguments_that_are_cut_off() -> None:
    (call,) = called('{"name": "f", "arguments": {"a": [1, ')
    assert call == Call("f", "", '{"a": [1, ', is_whole=True, is_malformed=True)
    (call,) = called('{"name": "f", "arguments": {"a": 1}')  # mlx-lm raises: one brace too few
    assert call == Call("f", "", '{"a": 1}', is_whole=True)
    (call,) = called('{"name": "f", oops')
    assert call == Call("f", "", "", is_whole=True, is_malformed=True)


def test_an_end_marker_in_a_string_that_is_cut_off_ends_nothing() -> None:
    (call,) = called('{"name": "f", "arguments": {"a": "b')
    assert call == Call("f", "", '{"a": "b</tool_call>')


def test_a_call_behind_an_opening_that_was_none_is_read() -> None:
    made = read(FORMAT, f"<tool_call>{{oops {WEATHER}")
    assert made.text == "<tool_call>{oops "
    assert [call.name for call in made.calls] == ["get_weather"]


def test_a_brace_too_many_is_content_and_the_end_marker_is_not() -> None:
    made = read(FORMAT, '<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>\nbye')
    assert made.text == "}\n\nbye"
    assert made.calls == [Call("f", "", "{}", is_whole=True)]


def test_a_second_call_of_a_list_that_is_none_is_content() -> None:
    made = read(FORMAT, '<tool_call>[{"name": "f"}, {"nom": "g"}]</tool_call>')
    assert made.text == ', {"nom": "g"}]'
    assert made.calls == [Call("f", "", "{}", is_whole=True)]


def test_the_grammar_writes_json_as_constraints_do() -> None:
    tool = ToolSpec("f", {"type": "object", "additionalProperties": {"type": "integer"}})
    grammar = FORMAT.lark([tool], quoted_terminal, many=False)
    for arguments, is_allowed in (
        ('{"a": 1, "b": 2}', True),
        ('{\n  "a": 1,\n  "b": 2\n}', True),
        ('{"\\u0061": 1}', False),  # a name in disguise
        ('{\n\n"a": 1}', False),
        ('{"a": 1} ', False),
    ):
        body = f'{{"name": "f", "arguments": {arguments}}}'
        assert accepts(grammar, f"<tool_call>\n{body}\n</tool_call>") == is_allowed, arguments


def test_white_space_that_does_not_end_is_held_back_without_being_read_again() -> None:
    reader = FORMAT.reader([])
    began_s = time.process_time()
    for _ in range(60_000):
        assert not reader.push("\n")
    assert list(reader.push("x")) == [Text("\n" * 60_000 + "x")]
    assert time.process_time() - began_s < 2.5
