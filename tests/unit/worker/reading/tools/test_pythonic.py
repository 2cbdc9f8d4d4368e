"""LFM2's calls: a list of Python's."""

import json
import warnings
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text, ToolSpec
from bramley.worker.reading.tools.pythonic import FORMAT
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

OPEN = "<|tool_call_start|>"
CLOSE = "<|tool_call_end|>"
WEATHER = 'get_weather(city="Zürich", days=2)'
BODIES = [
    f"[{WEATHER}]",
    f"[{WEATHER}, ping()]",
    '[a.b(x=\'it\\\'s\', y="say \\"x\\"", z=True,)]',
    "[ f( a = None , b = -1.5e3, c = .5, d = 1_000 ) ,\n g() ]",
    '[f(a=[1, (2, 3), []], b={"k": {"l": true, \'m\': null}}, c={}, d=())]',
    r'[f(a="\x41\101\u00fc\U0001f600\t\a\0", b=r"\d+", c=u"u")]',
    "[f(a='one' \"two\"\n'three', b='''q'q\"\n''', c=\"\"\"\"x\"\"\", d='')]",
    f'[f(a="[g(x=1)]{CLOSE})")]',
]
AMID_TEXT = f"See [1] and f(x=1).\n{OPEN}[{WEATHER}]{CLOSE}\n{OPEN}[ping()]{CLOSE}\nDone."


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the template writes it: Python's values, JSON's where they are nested."""
    named = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{OPEN}[{name}({named})]{CLOSE}"


@pytest.mark.parametrize("body", BODIES)
def test_a_list_is_what_mlx_lm_makes_of_it(body: str) -> None:
    made = read(FORMAT, f"{OPEN}{body}{CLOSE}")
    check_oracle(made, parsed("pythonic", body))
    assert made.text == ""


@pytest.mark.parametrize("text", [*(f"{OPEN}{body}{CLOSE}" for body in BODIES), AMID_TEXT])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


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


def test_content_around_calls_is_exact() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "See [1] and f(x=1).\n\nDone."
    assert [call.name for call in made.calls] == ["get_weather", "ping"]


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


@pytest.mark.parametrize("arguments", hard_arguments(CLOSE, ")]", '\'"""'))
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    made = read(FORMAT, written("run_code", arguments))
    assert made.text == ""
    (call,) = made.calls
    assert call.is_whole
    assert not call.is_malformed
    assert json.loads(call.arguments) == arguments


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


def test_b045_a_number_where_a_string_is_declared_stays_a_number() -> None:
    made = read(FORMAT, f"{OPEN}[get_weather(city=8001)]{CLOSE}")
    assert made.calls == [Call("get_weather", "", '{"city": 8001}', is_whole=True)]


def test_a_string_that_is_cut_off_takes_all_that_follows() -> None:
    made = read(FORMAT, f'{OPEN}[f(a="b)]{CLOSE}')
    assert made.calls == [Call("f", "", f'{{"a": "b)]{CLOSE}')]


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}{CLOSE}",
        f"{OPEN}[]{CLOSE}",
        f"{OPEN}[f]{CLOSE}",
        f"{OPEN}[(x=1)]{CLOSE}",
        f"{OPEN}[two words()]{CLOSE}",
        f"{OPEN}[get_weath",
        "<|tool_call_st",
        "[f(x=1)]",
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(12))


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
