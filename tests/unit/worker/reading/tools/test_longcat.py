"""LongCat's calls: keys and values between markers, or JSON."""

import json
from typing import Any

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart, Text
from bramley.worker.reading.tools.longcat import FORMAT
from support.tool_calls import (
    TOOLS,
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

OPEN = "<longcat_tool_call>"
CLOSE = "</longcat_tool_call>"


def pair(key: str, value: str) -> str:
    """A key and its value."""
    key = f"<longcat_arg_key>{key}</longcat_arg_key>"
    return f"{key}\n<longcat_arg_value>{value}</longcat_arg_value>\n"


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the template writes it."""
    pairs = (
        pair(key, value if isinstance(value, str) else json.dumps(value))
        for key, value in arguments.items()
    )
    return f"{OPEN}{name}\n{''.join(pairs)}{CLOSE}"


WEATHER = written("get_weather", {"city": "Zürich <b>", "days": 2})
CODE = written("run_code", {"source": "7", "lines": [1], "options": {"depth": 1}, "tag": "x"})
PING = written("ping", {})
LISTED = f'{OPEN}{{"name": "get_weather", "arguments": {{"city": "{CLOSE}"}}}}{CLOSE}'
AMID_TEXT = f"See <longcat>.\n{WEATHER}\n{PING}\n{LISTED}\n\ndone"


@pytest.mark.parametrize(
    "text",
    [
        WEATHER,
        CODE,
        written("other", {"a": "text", "b": True, "c": [1, {"d": None}], "e": -1.5}),
        f"{OPEN} get_weather {pair(' city ', 'Bern')} {pair('days', ' 3 ')}{CLOSE}",
        f'{OPEN}\n{{"name": "f", "arguments": {{"a": [1, {{}}]}}}}\n{CLOSE}',
    ],
)
def test_a_call_is_what_mlx_lm_makes_of_it(text: str) -> None:
    made = read(FORMAT, text)
    check_oracle(made, parsed("longcat", text.removeprefix(OPEN).removesuffix(CLOSE)))
    assert made.text == ""


def test_a_call_without_arguments_is_a_call() -> None:
    # mlx-lm raises.
    assert read(FORMAT, PING).calls == [Call("ping", "", "{}", is_whole=True)]


@pytest.mark.parametrize("text", [WEATHER, CODE, PING, LISTED, AMID_TEXT])
def test_how_a_text_is_cut_does_not_matter(text: str) -> None:
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_a_string_is_handed_on_while_it_is_written_and_another_value_when_it_is_whole() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push(f"{OPEN}get_weather\n<longcat_arg_key>") == [CallStart(0, "get_weather")]
    assert reader.push("city</longcat_arg_key>\n") == [CallArguments(0, '{"city": ')]
    assert reader.push('<longcat_arg_value>one "') == [CallArguments(0, r'"one \"')]
    assert reader.push("<two</longcat_arg_value>") == [CallArguments(0, '<two"')]
    assert reader.push("\n<longcat_arg_key>days</longcat_arg_key><longcat_arg_value>1") == [
        CallArguments(0, ', "days": ')
    ]
    assert reader.push("2</longcat_arg_value>") == [CallArguments(0, "12")]
    assert reader.push(CLOSE) == [CallArguments(0, "}"), CallEnd(0)]
    assert reader.finish() == []


def test_calls_in_parallel_are_numbered_and_content_around_them_is_exact() -> None:
    made = read(FORMAT, AMID_TEXT)
    assert made.text == "See <longcat>.\n\n\ndone"
    assert [call.name for call in made.calls] == ["get_weather", "ping", "get_weather"]
    assert json.loads(made.calls[2].arguments) == {"city": CLOSE}


@pytest.mark.parametrize("arguments", hard_arguments(CLOSE, OPEN, "<longcat_arg_key>"))
def test_b045_what_is_well_formed_comes_through_exactly(arguments: dict[str, Any]) -> None:
    # mlx-lm takes white space away from around a string.
    made = read(FORMAT, written("run_code", arguments))
    assert made.text == ""
    (call,) = made.calls
    assert call.is_whole
    assert not call.is_malformed
    assert json.loads(call.arguments) == arguments


def test_a_marker_in_a_string_of_an_object_does_not_end_it() -> None:
    # mlx-lm ends the value there.
    options = {"mode": "a</longcat_arg_value>b", "depth": 1}
    made = read(FORMAT, written("run_code", {"options": options}))
    assert json.loads(made.calls[0].arguments) == {"options": options}
    assert made.text == ""


def test_b045_a_number_where_a_string_is_declared_is_its_text() -> None:
    made = read(FORMAT, written("get_weather", {"city": 8001}))
    assert made.calls == [Call("get_weather", "", '{"city": "8001"}', is_whole=True)]


@pytest.mark.parametrize(
    ("body", "handed_on"),
    [
        ("<longcat_arg_key>city", '{"city": '),
        ("<longcat_arg_key>city</longcat_arg_key>x", '{"city": x'),
        (pair("city", "A") + "more", '{"city": "A"more'),
    ],
)
def test_b045_what_is_no_such_call_is_handed_on(body: str, handed_on: str) -> None:
    made = read(FORMAT, f"{OPEN}get_weather\n{body}{CLOSE}{PING}")
    assert made.text == ""
    assert made.calls == [
        Call("get_weather", "", handed_on, is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}{CLOSE}",
        f"{OPEN}two words{CLOSE}",
        f"{OPEN}f{{}}{CLOSE}",
        f"{OPEN}{{}}{CLOSE}",
        f"{OPEN}get_weath",
        "<longcat_tool",
    ],
)
def test_what_has_no_name_is_content_markers_included(text: str) -> None:
    assert events(FORMAT, [text]) == [Text(text)]
    check_cuts(FORMAT, text)


@pytest.mark.parametrize("many", [False, True])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(12))
