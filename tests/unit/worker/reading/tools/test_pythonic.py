"""LFM2's calls: a list of Python's."""

import json
import warnings
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, ToolSpec
from bramley.worker.reading.tools.pythonic import FORMAT
from support.json_forms import P_CLOSE as CLOSE
from support.json_forms import P_OPEN as OPEN
from support.tool_calls import (
    TOOLS,
    Call,
    accepts,
    check_oracle,
    parsed,
    quoted_terminal,
    random_text,
    read,
)


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push(f"{OPEN}[f(") == [CallStart(0, "f")]
    assert reader.push('a="one') == [CallArguments(0, '{"a": "one')]
    assert reader.push(" \\'two\\") == [CallArguments(0, " 'two")]
    assert reader.push('n"') == [CallArguments(0, r"\n")]
    assert reader.push(", b=1") == [CallArguments(0, '", "b": ')]
    assert reader.push("2)") == [CallArguments(0, "12}"), CallEnd(0)]
    assert reader.push(", g(") == [CallStart(1, "g")]
    assert reader.push(f")]{CLOSE}") == [CallArguments(1, "{}"), CallEnd(1)]
    assert reader.finish() == []


def test_a_list_of_objects_is_read_as_well() -> None:
    body = '[{"name": "f", "arguments": {"a": "\\u00fc"}}, {"name": "g", "arguments": {}}]'
    made = read(FORMAT, f"{OPEN}{body}{CLOSE}")
    assert made.text == ""
    assert made.calls == [
        Call("f", "", '{"a": "\\u00fc"}', is_whole=True),
        Call("g", "", "{}", is_whole=True),
    ]


def test_a_word_that_means_nothing_is_a_string_and_half_a_pair_an_escape() -> None:
    (call,) = read(FORMAT, rf'{OPEN}[f(a=Bern West, b=007, c="\ud83d\ude00 \ud800")]{CLOSE}').calls
    assert call.arguments == r'{"a": "Bern West", "b": "007", "c": "\ud83d\ude00 \ud800"}'
    assert call.is_whole
    assert not call.is_malformed


def test_b045_a_backslash_that_begins_no_escape_is_itself() -> None:
    text = r'[f(a="\d+\.\w")]'
    (call,) = read(FORMAT, f"{OPEN}{text}{CLOSE}").calls
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = parsed("pythonic", text)
    assert json.loads(call.arguments) == expected["arguments"] == {"a": r"\d+\.\w"}


@pytest.mark.parametrize(
    ("body", "handed_on"),
    [
        ('[f("x", 3)]', '"x", 3)]'),
        ("[f(a=[1, )]", '{"a": [1, )]'),
        ("[f(a={1: 2, 3})]", '{"a": {"1": 2, 3})]'),
        ("[f(a=1, b)]", '{"a": 1, b)]'),
        ('[f(a=b"x")]', '{"a": "b""x")]'),
        ("[f(a=1", '{"a": 1'),
        ("[f(a=)]", '{"a": )]'),
    ],
)
def test_b045_what_is_no_such_call_is_handed_on(body: str, handed_on: str) -> None:
    made = read(FORMAT, f"{OPEN}{body}{CLOSE}{OPEN}[ping()]{CLOSE}")
    assert made.text == ""
    assert made.calls == [
        Call("f", "", handed_on, is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]


def test_a_string_that_is_cut_off_takes_all_that_follows() -> None:
    made = read(FORMAT, f'{OPEN}[f(a="b)]{CLOSE}')
    assert made.calls == [Call("f", "", f'{{"a": "b)]{CLOSE}')]


def test_a_text_of_the_grammar_is_what_mlx_lm_reads_too() -> None:
    grammar = FORMAT.lark(TOOLS, quoted_terminal, many=True)
    for seed in range(8):
        text = random_text(grammar, seed)
        inner = text.removeprefix(OPEN).removesuffix(CLOSE)
        check_oracle(read(FORMAT, text), parsed("pythonic", inner))


def test_the_grammar_leaves_out_what_python_cannot_name() -> None:
    schema = {"properties": {"a": {"type": "boolean"}, "b-c": {}}, "type": "object"}
    grammar = FORMAT.lark([ToolSpec("f", schema)], quoted_terminal, many=False)
    for body in ("f()", "f(a=True)", "f(a=false)"):
        assert accepts(grammar, f"{OPEN}[{body}]{CLOSE}")
    for body in ("f(a=1)", "f(b-c=1)", "f(), f()"):
        assert not accepts(grammar, f"{OPEN}[{body}]{CLOSE}")


@pytest.mark.parametrize("schema", [{"required": ["b-c"]}, {"anyOf": [{"required": ["a"]}]}])
def test_a_tool_of_which_it_has_no_call_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        FORMAT.lark([ToolSpec("f", schema)], quoted_terminal, many=False)
