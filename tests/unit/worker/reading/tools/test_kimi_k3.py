"""Kimi K3: elements of special tokens, each value with its type."""

import json
from typing import Any

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, ToolSpec
from bramley.worker.reading.tools.kimi_k3 import FORMAT
from support.tool_calls import (
    TOOLS,
    accepts,
    check_cuts,
    check_limits,
    check_oracle,
    parsed,
    quoted_terminal,
    read,
)

OPEN, CLOSE = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"


def argument(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def call(inner: str, name: str = "run_code") -> str:
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


def block(text: str) -> str:
    return f'<|open|>json type="object"<|sep|>{text}<|close|>json<|sep|>'


def test_a_string_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push(f'{OPEN}<|open|>call tool="f" index="1"') == []
    assert reader.push("<|sep|>") == [CallStart(0, "f")]
    assert reader.push('<|open|>argument key="a" type="string"<|sep|> A') == [
        CallArguments(0, '{"a": " A')
    ]
    assert reader.push("<|close|>") == []
    assert reader.push("argument<|sep|>") == [CallArguments(0, '"')]
    assert reader.push("<|close|>call<|sep|>") == [CallArguments(0, "}"), CallEnd(0)]
    assert reader.push(CLOSE) == []
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "12", "12"),
        ("string", " \n", " \n"),
        ("number", "12", 12),
        ("number", "twelve", "twelve"),
        ("boolean", "true", True),
        ("null", "null", None),
        ("array", '["a", 1]', ["a", 1]),
        ("object", '{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("object", "{", "{"),
    ],
)
def test_the_type_that_is_written_is_the_values(kind: str, text: str, value: Any) -> None:
    for key in ("source", "lines", "share", "other"):
        body = call(argument(key, kind, text))
        made = read(FORMAT, OPEN + body + CLOSE)
        assert json.loads(made.calls[0].arguments) == {key: value}
        check_oracle(made, parsed("kimi_k3", body))


def test_without_a_type_it_is_a_string() -> None:
    body = call('<|open|>argument key="a"<|sep|>1<|close|>argument<|sep|>')
    check_oracle(read(FORMAT, OPEN + body + CLOSE), parsed("kimi_k3", body))


def test_arguments_may_be_one_json_object() -> None:
    body = call(block('{"city": "Tokyo", "n": [1]}')) + call("", "ping")
    text = OPEN + body + CLOSE
    made = read(FORMAT, text)
    check_oracle(made, parsed("kimi_k3", body))
    assert made.calls[0].arguments == '{"city": "Tokyo", "n": [1]}'
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (block("{broken"), "{broken"),
        (block("[1]"), "[1]"),
        (block("{}") + argument("a", "string", "b"), "{}" + argument("a", "string", "b")),
        (argument("a", "number", "1") + block("{}"), '{"a": 1' + block("{}")),
        ("<|open|>argument<|sep|>1", "<|open|>argument<|sep|>1"),
    ],
)
def test_a_call_that_is_no_object_comes_as_it_was_written(body: str, arguments: str) -> None:
    """mlx-lm drops such a call, or reads what it knows of it."""
    text = OPEN + call(body) + call("", "ping") + CLOSE
    made = read(FORMAT, text)
    assert made.text == ""
    assert [(one.name, one.arguments, one.is_malformed) for one in made.calls] == [
        ("run_code", arguments, True),
        ("ping", "{}", False),
    ]
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_names_have_two_characters_escaped() -> None:
    body = call(argument("&quot;k&amp;quot;", "number", "1"), "a&amp;&quot;b&quot;")
    made = read(FORMAT, OPEN + body + CLOSE)
    assert (made.calls[0].name, made.calls[0].arguments) == ('a&"b"', '{"\\"k&quot;": 1}')
    check_oracle(made, parsed("kimi_k3", body))
    tools = [ToolSpec('a&"b"', {"properties": {'"k&quot;': {"type": "integer"}}})]
    assert accepts(FORMAT.lark(tools, quoted_terminal, many=False), OPEN + body + CLOSE)


def test_the_grammar_numbers_calls() -> None:
    first, second = call("", "ping"), call("", "ping").replace('"1"', '"2"')
    many = FORMAT.lark(TOOLS, quoted_terminal, many=True)
    one = FORMAT.lark(TOOLS, quoted_terminal, many=False)
    assert accepts(many, OPEN + first + second + CLOSE)
    assert not accepts(many, OPEN + first.replace('"1"', '"0"') + CLOSE)
    assert accepts(one, OPEN + first + CLOSE)
    assert not accepts(one, OPEN + second + CLOSE)
