"""Gemma 4's calls: a notation of its own between <|tool_call> and <tool_call|>."""

import json
from typing import Any, cast

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text, ToolSpec
from bramley.worker.reading.tools.gemma4 import FORMAT
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
    random_text,
    read,
)

Q = '<|"|>'


def value(of: Any) -> str:
    """A value as the template writes it."""
    if isinstance(of, str):
        return f"{Q}{of}{Q}"
    if isinstance(of, dict):
        pairs = cast("dict[str, Any]", of).items()
        return "{" + ",".join(f"{key}:{value(one)}" for key, one in pairs) + "}"
    if isinstance(of, list):
        return "[" + ",".join(map(value, cast("list[Any]", of))) + "]"
    return json.dumps(of)


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the template writes it."""
    return f"<|tool_call>call:{name}{value(arguments)}<tool_call|>"


WEATHER = written("get_weather", {"city": "Zürich", "days": 2})
NESTED = written(
    "run-code",
    {
        "source": "{a: [1], <b> \"c\", 'd'}",
        "o": {"e": {"f": [True, None, -1.5e3]}},
        "g": [],
        "h": {},
    },
)
BODIES = [
    WEATHER,
    NESTED,
    written("ping", {}),
    f"<|tool_call>call:a{{x:1}}call:b{{y:{Q}2{Q}}}<tool_call|>",
    '<|tool_call>call:f{"a":"b \\" \\u00fc","c":[{d:1}]}<tool_call|>',
    f"<|tool_call>call:f{{a:{Q}call:g{{}}<tool_call|>{Q}}}<tool_call|>",
]
AMID_TEXT = f"See <|tool> and call:x{{}}.\n{WEATHER}{NESTED}\n<tool_call|> done"


@pytest.mark.parametrize("text", BODIES)
def test_a_call_is_what_mlx_lm_makes_of_it(text: str) -> None:
    made = read(FORMAT, text)
    inner = text.removeprefix("<|tool_call>").removesuffix("<tool_call|>")
    check_oracle(made, parsed("gemma4", inner))
    assert made.text == ""


@pytest.mark.parametrize("text", [*BODIES, WEATHER + "\n" + NESTED, AMID_TEXT])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push("<|tool_call>call:f{") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert reader.push(f"a:{Q}one") == [CallArguments(0, '"a": "one')]
    assert reader.push(' "two"\n<') == [CallArguments(0, r" \"two\"\n")]
    assert reader.push(f"3{Q},b:1") == [CallArguments(0, '<3", "b": ')]
    assert reader.push("2}") == [CallArguments(0, "12}"), CallEnd(0)]
    assert reader.push("<tool_call|>") == []
    assert reader.finish() == []


def test_calls_in_parallel_are_numbered_and_content_around_them_is_exact() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "See <|tool> and call:x{}.\n\n<tool_call|> done"
    assert [call.name for call in made.calls] == ["get_weather", "run-code"]


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


@pytest.mark.parametrize("arguments", hard_arguments("<tool_call|>", "<|tool_call>", '<|"|'))
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    made = read(FORMAT, written("run_code", arguments))
    assert made.text == ""
    (call,) = made.calls
    assert call.is_whole
    assert not call.is_malformed
    assert json.loads(call.arguments) == arguments


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
    made = read(FORMAT, f"<|tool_call>call:f{arguments}<tool_call|>{WEATHER}")
    assert made.text == ""
    assert made.calls[0] == Call("f", "", handed_on, is_whole=True, is_malformed=True)
    assert made.calls[1].name == "get_weather"


def test_b045_a_number_where_a_string_is_declared_stays_a_number() -> None:
    made = read(FORMAT, "<|tool_call>call:get_weather{city:8001}<tool_call|>")
    assert made.calls == [Call("get_weather", "", '{"city": 8001}', is_whole=True)]


def test_a_string_that_is_cut_off_takes_all_that_follows() -> None:
    made = read(FORMAT, f"<|tool_call>call:f{{a:{Q}b}}<tool_call|>")
    assert made.calls == [Call("f", "", '{"a": "b}<tool_call|>')]


def test_depth_spoils_a_call_and_nothing_else() -> None:
    made = read(FORMAT, "<|tool_call>call:f{a:" + "[" * 20_000 + "]" * 20_000 + "}<tool_call|>bye")
    assert made.text == "bye"
    assert made.calls[0].is_whole
    assert made.calls[0].is_malformed


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call><tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>call:f<tool_call|>",
        "<|tool_call>call:get_weath",
        "<|tool_",
        "call:f{}",
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(12))


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
    assert accepts(grammar, written("odd", good))
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
        assert accepts(grammar, written("odd", dict(sorted({**good, **one}.items()))))
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
        assert not accepts(grammar, written("odd", dict(sorted(one.items()))))


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
