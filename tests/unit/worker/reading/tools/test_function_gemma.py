"""FunctionGemma's calls: Gemma's notation between other markers."""

import json

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.function_gemma import FORMAT
from support.json_forms import F_NESTED, function_gemma_call
from support.tool_calls import (
    Call,
    read,
)

PING = function_gemma_call("ping", {})


def test_values_inside_each_other_are_read() -> None:
    # mlx-lm ends a call at the first brace, and a value at the first comma.
    (call,) = read(FORMAT, F_NESTED).calls
    assert json.loads(call.arguments) == {
        "source": "a } b",
        "lines": [1, [2]],
        "options": {"depth": {"e": "f"}},
    }
    assert call.is_whole
    assert not call.is_malformed


def test_arguments_are_handed_on_while_they_are_written() -> None:
    reader = FORMAT.reader([])
    assert reader.push("<start_function_call>call:f{") == [
        CallStart(0, "f"),
        CallArguments(0, "{"),
    ]
    assert reader.push("a:<escape>one") == [CallArguments(0, '"a": "one')]
    assert reader.push(" two<esc") == [CallArguments(0, " two")]
    assert reader.push("ape>}") == [CallArguments(0, '"}'), CallEnd(0)]
    assert reader.push("<end_function_call>") == []
    assert reader.finish() == []


def test_b045_what_is_cut_off_is_handed_on() -> None:
    made = read(FORMAT, f"<start_function_call>call:f{{a:[1,<end_function_call>{PING}")
    assert made.calls == [
        Call("f", "", '{"a": [1, ', is_whole=True, is_malformed=True),
        Call("ping", "", "{}", is_whole=True),
    ]
    made = read(FORMAT, "<start_function_call>call:f{a:<escape>b}<end_function_call>")
    assert made.calls == [Call("f", "", '{"a": "b}<end_function_call>')]
