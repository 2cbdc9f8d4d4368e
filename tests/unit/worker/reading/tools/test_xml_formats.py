"""What holds of every format whose parameters stand between markers."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.reading.events import CallArguments, ToolSpec
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
from support.xml_calls import Written, check_drawn, drawn
from support.xml_forms import FORMS
from support.xml_types import DIFFERENCES, TYPED, TYPES

WEATHER = ("get_weather", {"city": "Zürich <b>", "days": 2})
CODE = ("run_code", {"source": "a]]>&amp;", "lines": [1, 2], "options": {"depth": 1}})
PING: tuple[str, dict[str, Any]] = ("ping", {})

# mlx-lm does not follow references.
PLAIN = [
    replace(tool, schema={**tool.schema, "properties": {
        key: tool.schema["$defs"]["options"] if "$ref" in value else value
        for key, value in tool.schema["properties"].items()
    }})
    for tool in TOOLS
]  # fmt: skip

every_format = pytest.mark.parametrize("written", FORMS, ids=lambda one: one.form.name)
# In Kimi K3's the type of a value is written beside it.
every_typed_format = pytest.mark.parametrize(
    "written",
    [one for one in FORMS if one.form.name != "kimi_k3"],
    ids=lambda one: one.form.name,
)


def inner(written: Written, text: str) -> str:
    """What mlx-lm's server hands to its parser: without the marker that opens, in most."""
    return text.removeprefix(written.form.opens).removesuffix("</tool_call>")


@every_format
def test_b045_hard_arguments_come_back_exactly(written: Written) -> None:
    markers = [*written.form.markers, written.form.opens, "</think>"]
    for arguments in hard_arguments(*(one for one in markers if written.value_end not in one)):
        text = written.text(("run_code", arguments))
        made = read(written.form, text)
        assert made.text == ""
        assert [json.loads(call.arguments) for call in made.calls] == [arguments]
        pieces = [one.text for one in events(written.form, text) if isinstance(one, CallArguments)]
        assert json.loads("".join(pieces)) == arguments


@every_format
def test_a_call_is_what_mlx_lm_makes_of_it(written: Written) -> None:
    for arguments in [*hard_arguments(written.form.opens), dict(WEATHER[1])]:
        source = str(arguments.get("source", ""))
        if written.strips and source != source.strip():
            continue  # the text's own white space, which mlx-lm takes off
        text = written.text(("run_code" if "source" in arguments else "get_weather", arguments))
        check_oracle(
            read(written.form, text), parsed(written.form.name, inner(written, text), PLAIN)
        )


@every_format
def test_parallel_calls_are_what_mlx_lm_makes_of_them(written: Written) -> None:
    text = written.text(WEATHER, CODE, PING)
    if written.run[0] or written.form.name == "minicpm5":
        texts = [inner(written, text)]
    else:
        texts = [inner(written, written.text(one)) for one in (WEATHER, CODE, PING)]
    expected = [call for one in texts for call in parsed(written.form.name, one, PLAIN)]
    check_oracle(read(written.form, text), expected)


@every_typed_format
def test_a_value_has_the_type_of_its_schema(written: Written) -> None:
    for key, text, value in TYPES:
        made = read(written.form, written.text(("typed", {key: text})), [TYPED])
        assert [call.is_malformed for call in made.calls] == [False]
        arguments = json.loads(made.calls[0].arguments)
        assert arguments == {key: value}, (key, text)
        assert type(arguments[key]) is type(value), (key, text)


@every_typed_format
def test_values_are_what_mlx_lm_makes_of_them_but_where_it_is_said(written: Written) -> None:
    found = set[tuple[str, str]]()
    for key, text, value in TYPES:
        if len(text) > 1_000:
            continue  # no parser there reads that deep
        whole = inner(written, written.text(("typed", {key: text})))
        try:
            other = parsed(written.form.name, whole, [TYPED])[0]["arguments"][key]
        except ValueError:
            found.add((key, text))
            continue
        if other != value or type(other) is not type(value):
            found.add((key, text))
    assert found == DIFFERENCES[written.form.name]


@every_format
def test_how_a_text_is_cut_does_not_matter(written: Written) -> None:
    text = f"Let me <look>.\n\n{written.text(WEATHER, CODE)}\n\nAnd <that>.\n{written.text(PING)}\n"
    check_cuts(written.form, text)
    check_limits(written.form, text)
    made = read(written.form, text)
    assert made.text == "Let me <look>.\n\n\n\nAnd <that>.\n"
    assert [call.name for call in made.calls] == ["get_weather", "run_code", "ping"]


@every_format
def test_b048_a_call_is_whole_when_it_is_closed_and_not_before(written: Written) -> None:
    text = written.text(WEATHER)
    closed = len(text.removesuffix(written.run[1]))
    if written.form.name == "qwen3_coder":
        closed -= len("\n</tool_call>")
    for size in range(len(text) + 1):
        made = read(written.form, text[:size])
        assert [call.is_whole for call in made.calls if size >= closed] == [True] * (size >= closed)
        assert not any(call.is_whole for call in made.calls if size < closed)
        for call in made.calls:
            assert call.is_whole or json.dumps(WEATHER[1], ensure_ascii=False).startswith(
                call.arguments
            )


@every_format
def test_white_space_around_calls_is_nobodys(written: Written) -> None:
    made = read(written.form, f" \n{written.text(WEATHER, PING)}\n\n{written.text(CODE)} \n")
    assert made.text == ""
    assert [call.name for call in made.calls] == ["get_weather", "ping", "run_code"]
    assert [call.arguments for call in made.calls if call.name == "ping"] == ["{}"]
    assert read(written.form, " \n ").text == " \n "


@every_format
def test_what_has_no_name_is_text(written: Written) -> None:
    for text in written.broken:
        made = read(written.form, text)
        assert made.text == text
        assert made.calls == []
        check_cuts(written.form, text)


@every_format
def test_a_name_has_an_end(written: Written) -> None:
    text = written.text(("x" * 300, {}))
    made = read(written.form, text)
    assert made.text == text
    assert read(written.form, written.text(("x" * 200, {}))).calls[0].name == "x" * 200


@every_format
def test_what_is_no_parameter_spoils_its_call_alone(written: Written) -> None:
    form = written.form
    call = written.call("get_weather", {"city": "A"})
    end = call[call.rindex(written.value_end) + len(written.value_end) :]
    bad = written.run[0] + call.removesuffix(end) + "and so on" + end + written.run[1]
    made = read(form, f"{bad}\n{written.text(WEATHER)}")
    assert made.text == ""
    assert [call.is_malformed for call in made.calls] == [True, False]
    assert made.calls[0].arguments.rstrip() == '{"city": "A"and so on'
    check_cuts(form, bad)
    check_limits(form, bad)


@every_format
def test_a_body_that_is_a_json_object_is_the_arguments(written: Written) -> None:
    call = written.call("ping", {})
    close = "</tool_call>" if written.form.name in {"glm47", "laguna"} else call[call.rindex("<") :]
    if written.form.name == "qwen3_coder":
        close = "</function>\n</tool_call>"
    if written.form.name == "kimi_k3":
        close = "<|close|>call<|sep|>"
    text = written.run[0] + call.removesuffix(close) + '{"a": [1]}' + close + written.run[1]
    made = read(written.form, text)
    assert made.text == ""
    assert [(one.arguments.strip(), one.is_malformed) for one in made.calls] == [
        ('{"a": [1]}', False)
    ]


@every_format
@pytest.mark.parametrize("many", [True, False], ids=["many", "one"])
def test_what_the_grammar_allows_is_read(written: Written, many: bool) -> None:
    check_drawn(written.form, written.ends, many=many, seeds=range(10))


@every_format
def test_the_grammar_allows_what_the_template_writes(written: Written) -> None:
    many = written.form.lark(TOOLS, quoted_terminal, many=True)
    one = written.form.lark(TOOLS, quoted_terminal, many=False)
    code = ("run_code", {**CODE[1], "source": "a]]&amp;\n"})
    assert accepts(many, written.text(WEATHER, code, PING))
    assert accepts(one, written.text(code))
    assert not accepts(one, written.text(WEATHER, PING))
    assert not accepts(many, written.text(("get_weather", {"days": 2})))
    assert not accepts(many, written.text(("get_weather", {"city": "a", "days": "b"})))
    assert not accepts(many, written.text(("other", {})))
    assert not accepts(many, f"Hm. {written.text(WEATHER)}")


@every_format
def test_the_grammar_keeps_to_what_a_string_must_be(written: Written) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "short": {"type": "string", "minLength": 2, "maxLength": 4},
            "code": {"type": "string", "pattern": "^[a-c]/[0-9]$"},
            "has": {"type": "string", "pattern": "x"},
            "one": {"enum": ["a < b", "true", 3, True]},
            "or": {"type": ["string", "array"], "items": {"type": "integer"}},
            "any": dict[str, Any](),
        },
        "required": ["short", "code", "has", "one", "or", "any", "more"],
    }
    tools = [ToolSpec("f", schema)]
    grammar = written.form.lark(tools, quoted_terminal, many=False)
    seen = set[str]()
    for seed in range(10):
        text = drawn(grammar, seed, (*written.ends, "x"))
        made = read(written.form, text, tools)
        value = json.loads(made.calls[0].arguments)
        jsonschema.validate(value, schema)
        seen.add(type(value["one"]).__name__)
    assert len(seen) > 1


@every_format
def test_a_rule_that_no_grammar_can_hold_is_refused(written: Written) -> None:
    for schema in (
        {"type": "object", "minProperties": 1},
        {"properties": {"a": {"type": "string", "not": {"const": "b"}}}},
        {"properties": {"a": {"const": written.value_end + "]]>"}}},
    ):
        with pytest.raises(InvalidRequest, match="f"):
            written.form.lark([ToolSpec("f", schema)], quoted_terminal, many=False)


@every_format
def test_special_tokens_stand_in_the_grammar_by_name(written: Written) -> None:
    grammar = written.form.lark(TOOLS, lambda marker: f"<[{marker}]>", many=True)
    for marker in written.form.markers:
        assert json.dumps(marker) not in grammar


@every_format
def test_no_string_in_a_list_may_have_the_marker_that_ends_the_list(written: Written) -> None:
    schema = {"properties": {"texts": {"type": "array", "items": {"type": "string"}}}}
    grammar = written.form.lark([ToolSpec("f", schema)], quoted_terminal, many=False)
    marker = "<|close|>" if written.form.name == "kimi_k3" else written.value_end
    for text in ("", "a", "<b>c</b>", f"<{marker[:-1]}<", f"{marker[:-1]}x", "<|open|>", "<</"):
        assert accepts(grammar, written.text(("f", {"texts": [text, "x"]}))), text
    for text in (marker, f"a<{marker}>", f"{marker[:-1]}{marker}"):
        assert not accepts(grammar, written.text(("f", {"texts": [text]}))), text


def _tangled(width: int, depth: int) -> dict[str, Any]:
    """A schema of few words and of a great many alternatives."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * width}
        for level in range(depth)
    }
    definitions[f"d{depth}"] = {"type": "integer"}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


@every_format
def test_a_schema_of_endless_alternatives_takes_no_time(written: Written) -> None:
    tools = [ToolSpec("f", _tangled(10, 14))]
    (call,) = read(written.form, written.text(("f", {"a": 5})), tools).calls
    assert json.loads(call.arguments) == {"a": 5}
    with pytest.raises(InvalidRequest, match="alternatives"):
        written.form.lark(tools, quoted_terminal, many=False)
