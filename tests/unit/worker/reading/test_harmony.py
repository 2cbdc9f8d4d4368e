"""gpt-oss's messages: analysis, preambles, calls and answers, and headers that are spoilt."""

import pytest

from bramley.worker.reading.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from bramley.worker.reading.harmony import (
    CONTENT_LEAD,
    CONTENT_START,
    FORMAT,
    MARKERS,
    REASONING_END,
    REASONING_START,
    HarmonyReader,
)
from support.reading import check_order, read_every_way
from support.tool_calls import TOOLS, accepts, check_grammar, quoted_terminal

ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
TO_PING = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>"


def said(text: str, *, is_open: bool = False, has_tools: bool = True) -> list[Event]:
    """What a text comes to, in every cutting."""
    tools = TOOLS if has_tools else ()
    events = read_every_way(lambda: HarmonyReader(tools, is_open=is_open), text)
    check_order(events)
    return events


def called(name: str, arguments: str, index: int = 0) -> list[Event]:
    return [CallStart(index, name), CallArguments(index, arguments), CallEnd(index)]


def test_analysis_is_reasoning_and_final_is_content() -> None:
    text = f"{ANALYSIS}2 < 3, größer.{NEXT}{FINAL}Yes <b>.\n<|return|>"
    assert said(text) == [Reasoning("2 < 3, größer."), Text("Yes <b>.\n")]


def test_an_answer_may_do_without_reasoning() -> None:
    assert said(f"{FINAL} Hi ") == [Text(" Hi ")]


def test_b046_what_the_prompt_opened_is_reasoning() -> None:
    assert said(f"abc{NEXT}{FINAL}def", is_open=True) == [Reasoning("abc"), Text("def")]
    assert said("abc", is_open=True) == [Reasoning("abc")]
    assert said(f"{FINAL}def") == [Text("def")]


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.ping <|constrain|>json",
        "<|channel|>commentary to=functions.ping<|constrain|>json",
        "<|channel|>commentary to=functions.ping json",
        "<|channel|>commentary to=functions.ping",
        " to=functions.ping<|channel|>commentary json",
        " to=functions.ping <|channel|>commentary <|constrain|>json",
        "<|start|>assistant to=functions.ping<|channel|>commentary",
        "<|start|>assistant<|channel|>commentary to=functions.ping code",
        "<|channel|>analysis to=functions.ping",
        " to=functions.ping",
    ],
)
def test_a_message_with_a_recipient_is_a_call(header: str) -> None:
    assert said(f'{header}<|message|>{{"a": [1]}}<|call|>') == called("ping", '{"a": [1]}')


def test_a_call_behind_reasoning_and_a_preamble() -> None:
    text = f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>I look.{NEXT}{TO_PING}{{}}<|call|>"
    assert said(text) == [Reasoning("a"), Text("I look."), *called("ping", "{}")]


def test_several_calls_are_numbered() -> None:
    text = f"{TO_PING}{{}}{NEXT}{TO_PING}{{}}<|call|>"
    assert said(text) == [*called("ping", "{}"), *called("ping", "{}", 1)]


@pytest.mark.parametrize(
    ("recipient", "name"),
    [("functions.no_such", "no_such"), ("functions.my.tool", "my.tool"), ("python", "python")],
)
def test_any_name_is_called(recipient: str, name: str) -> None:
    text = f"<|channel|>commentary to={recipient}<|message|>{{}}<|call|>"
    assert said(text) == called(name, "{}")


@pytest.mark.parametrize("recipient", ["assistant", "user", "all"])
def test_a_person_is_not_called(recipient: str) -> None:
    assert said(f"<|channel|>commentary to={recipient}<|message|>a<|end|>") == [Text("a")]


def test_a_recipient_without_a_name_is_not_called() -> None:
    assert said("<|channel|>commentary to=functions.<|message|>{}<|call|>") == [Text("{}")]
    assert said("<|channel|>commentary to=<|message|>{}<|call|>") == [Text("{}")]


def test_without_tools_the_channel_alone_says_what_a_message_is() -> None:
    assert said(f"{TO_PING}{{}}<|call|>", has_tools=False) == [Text("{}")]
    text = "<|channel|>analysis to=python code<|message|>1 + 1<|call|>"
    assert said(text, has_tools=False) == [Reasoning("1 + 1")]


@pytest.mark.parametrize("arguments", ["[1]", "x", '{"a": 1} 2', '{"a": NaN}', "{", "[" * 20_000])
def test_arguments_that_are_no_object_are_handed_on_as_they_are(arguments: str) -> None:
    reader = HarmonyReader(TOOLS, is_open=False)
    events = [*reader.push(f"{TO_PING}{arguments}<|call|>"), *reader.finish()]
    assert events == [
        CallStart(0, "ping"),
        CallArguments(0, arguments),
        CallEnd(0, is_malformed=True),
    ]


def test_a_marker_in_a_string_of_the_arguments_is_text() -> None:
    arguments = '{"a": "\\"<|end|><|start|>\\\\", "b": "<|call|>"}'
    assert said(f"{TO_PING}{arguments}<|call|>") == called("ping", arguments)
    events = said('<|channel|>analysis to=python code<|message|>print("a)<|call|>')
    assert events[-1] == CallEnd(0, is_malformed=True)


def test_a_call_without_arguments_is_malformed() -> None:
    assert said(f"{TO_PING}<|call|>") == [CallStart(0, "ping"), CallEnd(0, is_malformed=True)]


def test_a_call_that_is_cut_has_no_end() -> None:
    whole = f'{TO_PING}{{"a": "b"}}'
    for size in range(len(whole)):
        assert not [event for event in said(whole[:size]) if isinstance(event, CallEnd)]


def test_a_call_whose_object_is_whole_needs_no_last_marker() -> None:
    assert said(f"{TO_PING}{{}} \n") == called("ping", "{} \n")
    assert CallEnd(0) not in said(f"{TO_PING}{{}}<|ca")


def test_a_text_without_headers_is_content_to_the_letter() -> None:
    for text in ("Hello to=x", "  to be", "t", "to=x", "a\n\n<b> <| <|chan ", "\n\nassistant"):
        assert said(text) == [Text(text)]


def test_a_text_that_ends_inside_a_header_says_no_more() -> None:
    header = ["<|end|>", "<|start|>", "assist", "ant", "<|channel|>", "comment", "ary", " to="]
    header += ["functions", ".ping", " ", "<|constrain|>", "json"]
    for count in range(len(header) + 1):
        assert said(f"{ANALYSIS}a{''.join(header[:count])}") == [Reasoning("a")]


def test_a_header_is_one_short_line() -> None:
    long = "<|channel|>" + "x" * 300
    assert said(f"{long}<|message|>") == [Text(f"{long}<|message|>")]
    assert said("<|start|>a\nb") == [Text("<|start|>a\nb")]
    assert said("<|channel|>final\n<|message|>a") == [Text("a")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|message|>a<|end|>", [Text("a")]),
        ("<|channel|><|message|>a", [Text("a")]),
        ("<|channel|>no such channel<|message|>a", [Text("a")]),
        ("<|constrain|><|constrain|><|message|>a", [Text("a")]),
        ("<|channel|>analysis<|channel|>final<|message|>a", [Text("a")]),
        ("<|start|><|start|>assistant<|channel|>final<|message|>a", [Text("a")]),
        ("<|end|><|return|><|call|>", []),
        ("<|channel|>final<|end|>", []),
        ("to=x<|end|>", [Text("to=x")]),
        ("a<|message|>b<|constrain|>c", [Text("a<|message|>b<|constrain|>c")]),
    ],
)
def test_a_spoilt_header_spoils_nothing_else(text: str, expected: list[Event]) -> None:
    assert said(text) == expected


def test_a_channel_that_begins_inside_a_text_ends_it() -> None:
    assert said(f"{ANALYSIS}a{FINAL}b") == [Reasoning("a"), Text("b")]
    assert said(f"{TO_PING}{{}}<|start|>assistant{FINAL}b") == [*called("ping", "{}"), Text("b")]


def test_messages_of_one_side_are_parted_by_a_blank_line() -> None:
    text = f"{ANALYSIS}a\n{NEXT}{ANALYSIS}b{NEXT}<|channel|>commentary<|message|>c{NEXT}{FINAL}d"
    assert said(text) == [Reasoning("a\n\nb"), Text("c\n\nd")]


def test_an_empty_message_says_nothing() -> None:
    assert said(f"{ANALYSIS} \n{NEXT}{FINAL}<|return|>") == []
    assert said(f"{ANALYSIS}{NEXT}{ANALYSIS}a") == [Reasoning("a")]
    assert said(f"{FINAL}{NEXT}{FINAL}a") == [Text("a")]


def test_white_space_beside_reasoning_and_between_messages_is_dropped() -> None:
    text = f"\n{ANALYSIS}\n a \n<|end|>\n<|start|>assistant{FINAL}\n\nb \n<|return|>\n"
    assert said(text) == [Reasoning("a"), Text("b \n")]


def test_where_reasoning_stands_is_told_between_two_pieces() -> None:
    reader = HarmonyReader(TOOLS, is_open=False)
    states: list[bool] = []
    pieces = ("<|channel|>", "analysis", "<|message|>", "a", "<|end|>", "<|start|>", "assistant")
    for piece in (*pieces, FINAL, "b"):
        reader.push(piece)
        states.append(reader.is_reasoning)
    assert states == [False, False, True, True, False, False, False, False, False]
    assert HarmonyReader(TOOLS, is_open=True).is_reasoning


def test_nothing_of_a_marker_is_told_before_it_is_none() -> None:
    for marker in MARKERS:
        for size in range(1, len(marker)):
            reader = HarmonyReader(TOOLS, is_open=False)
            reader.push(FINAL)
            assert reader.push(f"a{marker[:size]}") == [Text("a")]
            assert reader.push("\x00") == [Text(f"{marker[:size]}\x00")]


def test_what_closes_reasoning_begins_content() -> None:
    text = f"{REASONING_START}a{REASONING_END}{CONTENT_LEAD}b"
    assert said(text) == [Reasoning("a"), Text("b")]
    assert said(f"{CONTENT_START}b") == [Text("b")]


@pytest.mark.parametrize("many", [False, True])
def test_its_grammar_makes_valid_calls(*, many: bool) -> None:
    check_grammar(FORMAT, many=many, seeds=range(4))


def test_its_grammar_takes_a_call_behind_the_prompt_and_behind_reasoning() -> None:
    grammar = FORMAT.lark(TOOLS, quoted_terminal, many=False)
    for call in (f"{TO_PING}{{}}<|call|>", f"<|start|>assistant{TO_PING}{{}}<|call|>"):
        assert accepts(grammar, call)
    assert not accepts(grammar, "<|channel|>commentary to=functions.pong <|constrain|>json")
    assert not accepts(grammar, f"{FINAL}a")
