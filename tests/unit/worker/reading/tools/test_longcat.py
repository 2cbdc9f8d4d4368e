"""LongCat's calls: keys and values between markers, or JSON."""

import json

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.longcat import FORMAT
from support.json_forms import L_CLOSE as CLOSE
from support.json_forms import L_OPEN as OPEN
from support.json_forms import longcat_call, longcat_pair
from support.tool_calls import (
    TOOLS,
    Call,
    read,
)

PING = longcat_call("ping", {})


def test_a_call_without_arguments_is_a_call() -> None:
    # mlx-lm raises.
    assert read(FORMAT, PING).calls == [Call("ping", "", "{}", is_whole=True)]


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


def test_a_marker_in_a_string_of_json_does_not_end_the_call() -> None:
    text = f'{OPEN}{{"name": "f", "arguments": {{"city": "{CLOSE}"}}}}{CLOSE}'
    assert json.loads(read(FORMAT, text).calls[0].arguments) == {"city": CLOSE}


def test_a_marker_in_a_string_of_an_object_does_not_end_it() -> None:
    # mlx-lm ends the value there.
    options = {"mode": "a</longcat_arg_value>b", "depth": 1}
    made = read(FORMAT, longcat_call("run_code", {"options": options}))
    assert json.loads(made.calls[0].arguments) == {"options": options}
    assert made.text == ""


@pytest.mark.parametrize(
    ("body", "handed_on"),
    [
        ("<longcat_arg_key>city", '{"city": '),
        ("<longcat_arg_key>city</longcat_arg_key>x", '{"city": x'),
        (longcat_pair("city", "A") + "more", '{"city": "A"more'),
    ],
)
def test_b045_what_is_no_such_call_is_handed_on(body: str, handed_on: str) -> None:
    made = read(FORMAT, f"{OPEN}get_weather\n{body}{CLOSE}{PING}")
    assert made.text == ""
    assert made.calls == [
        Call("get_weather", "", handed_on, is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]
