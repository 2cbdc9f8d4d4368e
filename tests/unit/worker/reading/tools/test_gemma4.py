"""Gemma 4's calls: a notation of its own between <|tool_call> and <tool_call|>."""

from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, ToolSpec
from bramley.worker.reading.tools.gemma4 import FORMAT
from support.json_forms import G_WEATHER, gemma4_call
from support.tool_calls import (
    TOOLS,
    Call,
    accepts,
    check_grammar,
    check_oracle,
    parsed,
    quoted_terminal,
    random_text,
    read,
)

Q = '<|"|>'


def test_arguments_are_handed_on_while_they_are_gemma4_call() -> None:
    reader = FORMAT.reader([])
    assert reader.push("<|tool_call>call:f{") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert reader.push(f"a:{Q}one") == [CallArguments(0, '"a": "one')]
    assert reader.push(' "two"\n<') == [CallArguments(0, r" \"two\"\n")]
    assert reader.push(f"3{Q},b:1") == [CallArguments(0, '<3", "b": ')]
    assert reader.push("2}") == [CallArguments(0, "12}"), CallEnd(0)]
    assert reader.push("<tool_call|>") == []
    assert reader.finish() == []


def test_what_else_may_stand_for_a_value() -> None:
    # mlx-lm raises on these.
    made = read(FORMAT, "<|tool_call>call:f{a:None,b:True, c : Bern West ,d:.5,e:007,}<tool_call|>")
    assert made.calls == [
        Call(
            "f",
            "",
            '{"a": null, "b": true, "c": "Bern West", "d": 0.5, "e": "007"}',
            is_whole=True,
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "handed_on"),
    [
        ("{a:[1,", '{"a": [1, '),
        ("{a:1]}", '{"a": 1]}'),
        ("{a}", "{a}"),
        ("{a:}", '{"a": }'),
        (r'{a:"\d"}', r'{"a": "\d"}'),
        ("{a:1", '{"a": 1'),
        ("{a:1,b c", '{"a": 1, b c'),
    ],
)
def test_b045_what_is_no_such_object_is_handed_on(arguments: str, handed_on: str) -> None:
    made = read(FORMAT, f"<|tool_call>call:f{arguments}<tool_call|>{G_WEATHER}")
    assert made.text == ""
    assert made.calls[0] == Call("f", "", handed_on, is_whole=True, is_malformed=True)
    assert made.calls[1].name == "get_weather"


def test_a_string_that_is_cut_off_takes_all_that_follows() -> None:
    made = read(FORMAT, f"<|tool_call>call:f{{a:{Q}b}}<tool_call|>")
    assert made.calls == [Call("f", "", '{"a": "b}<tool_call|>')]


def test_depth_spoils_a_call_and_nothing_else() -> None:
    made = read(FORMAT, "<|tool_call>call:f{a:" + "[" * 20_000 + "]" * 20_000 + "}<tool_call|>bye")
    assert made.text == "bye"
    assert made.calls[0].is_whole
    assert made.calls[0].is_malformed


ODD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", 2, None, True, [1, "x"], {"b": "c"}, ""]},
        "word": {"type": "string", "minLength": 2, "maxLength": 4},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        "part": {"type": "string", "pattern": "a/b"},
        "pair": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
        "none": {"type": "array", "maxItems": 0},
        "tree": {"$ref": "#/$defs/tree"},
        "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 3}},
        "any": {},
        "some": {"type": ["integer", "null"]},
    },
    "required": ["word", "code"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"const": 1}},
            "additionalProperties": False,
        }
    },
}


def test_the_grammar_keeps_to_what_a_schema_says() -> None:
    tools = (ToolSpec("odd", ODD),)
    # Chance would hardly end the one, or find the other's pattern.
    named = {key: one for key, one in ODD["properties"].items() if key not in {"any", "part"}}
    check_grammar(
        FORMAT, many=False, seeds=range(30), tools=[ToolSpec("odd", {**ODD, "properties": named})]
    )
    grammar = FORMAT.lark(tools, quoted_terminal, many=False)
    good = {"code": "AB-12", "word": "abc"}
    assert accepts(grammar, gemma4_call("odd", good))
    more: list[dict[str, Any]] = [
        {"kind": 2},
        {"kind": [1, "x"]},
        {"kind": {"b": "c"}},
        {"tree": {"left": {"leaf": 1}}},
        {"pair": [True, False]},
        {"any": {"x": [1, "y", {}]}},
        {"map": {"n": 3}},
        {"some": None},
        {"part": "xa/by"},
    ]
    for one in more:
        assert accepts(grammar, gemma4_call("odd", dict(sorted({**good, **one}.items()))))
    bad: list[dict[str, Any]] = [
        {"word": "abc"},
        {**good, "kind": 3},
        {**good, "word": "abcde"},
        {**good, "code": "AB-"},
        {**good, "pair": [True]},
        {**good, "map": {"n": 2}},
        {**good, "other": 1},
    ]
    for one in bad:
        assert not accepts(grammar, gemma4_call("odd", dict(sorted(one.items()))))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "object"}]},
        {"properties": {"a": {"type": "array", "uniqueItems": True}}},
        {"required": ["a:b"]},
        {"properties": {"a": {"enum": [Q]}}},
        {"properties": {"a": {"type": "string", "pattern": "^a|b"}}},
        {"properties": {"a": False}},
    ],
)
def test_a_schema_that_no_grammar_can_hold_to_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        FORMAT.lark([ToolSpec("f", schema)], quoted_terminal, many=False)


def test_a_text_of_the_grammar_is_what_mlx_lm_reads_too() -> None:
    grammar = FORMAT.lark(TOOLS[:1], quoted_terminal, many=False)
    for seed in range(5):
        text = random_text(grammar, seed, sorted(FORMAT.markers))
        inner = text.removeprefix("<|tool_call>").removesuffix("<tool_call|>")
        check_oracle(read(FORMAT, text), parsed("gemma4", inner))
