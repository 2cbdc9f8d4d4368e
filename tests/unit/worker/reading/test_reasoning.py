"""Reasoning and content are told apart, whatever the markers and wherever the text is cut."""

import pytest

from bramley.worker.reading.events import Event, PlainReader, Reasoning, Text
from bramley.worker.reading.frames import FrameReader
from bramley.worker.reading.reasoning import ContentReader, ReasoningReader
from bramley.worker.reading.tools.json_tools import FORMAT as JSON_TOOLS
from support.reading import joined, read, read_every_way, shown
from support.tool_calls import TOOLS

MARKERS = [
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
]
every_family = pytest.mark.parametrize(("start", "end"), MARKERS)


def said(start: str, end: str, text: str, *, is_open: bool = False) -> list[Event]:
    """What a text comes to, in every cutting."""
    return read_every_way(lambda: ReasoningReader(start, end, PlainReader(), is_open=is_open), text)


def think(text: str, *, is_open: bool = False) -> list[Event]:
    return said("<think>", "</think>", text, is_open=is_open)


@every_family
def test_an_answer_without_markers_is_content_to_the_letter(start: str, end: str) -> None:
    text = " \n  Größe < 3 & </b> <thin k> \U0001f600 <|chan \n"
    assert said(start, end, text) == [Text(text)]


@every_family
def test_reasoning_stands_before_content(start: str, end: str) -> None:
    text = f"\n{start}\n\nIs 1 < 2?\n Ja, größer.\n\n{end}\n\nYes.\n"
    assert said(start, end, text) == [Reasoning("Is 1 < 2?\n Ja, größer."), Text("Yes.\n")]


@every_family
def test_b046_what_the_prompt_opened_is_reasoning(start: str, end: str) -> None:
    assert said(start, end, f"abc{end}def", is_open=True) == [Reasoning("abc"), Text("def")]
    assert said(start, end, "abc", is_open=True) == [Reasoning("abc")]
    assert said(start, end, "def") == [Text("def")]


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("abc</think>def", True, ("abc", "def")),
        ("abc", True, ("abc", "")),
        ("def", False, ("", "def")),
        ("ä\U0001f600</think>ö", True, ("ä\U0001f600", "ö")),
    ],
)
def test_b046_one_byte_a_token(text: str, *, is_open: bool, expected: tuple[str, str]) -> None:
    """Bytes that are no whole character yet come as no text at all."""
    reader = ReasoningReader("<think>", "</think>", PlainReader(), is_open=is_open)
    decoded = [
        text.encode()[: place + 1].decode(errors="ignore") for place in range(len(text.encode()))
    ]
    pieces = [now[len(before) :] for before, now in zip(["", *decoded], decoded, strict=False)]
    assert shown(read(reader, pieces)) == expected
    whole = ReasoningReader("<think>", "</think>", PlainReader(), is_open=is_open)
    assert shown(read(whole, [text])) == expected


@every_family
def test_an_empty_section_says_nothing(start: str, end: str) -> None:
    assert said(start, end, f"{start}\n\n{end}\n\nHi") == [Text("Hi")]
    assert said(start, end, f"{end}Hi", is_open=True) == [Text("Hi")]
    assert said(start, end, f"{start}{end}") == []
    assert said(start, end, f" {start} ") == []
    assert said(start, end, "\n", is_open=True) == []


@every_family
def test_a_text_that_ends_inside_a_marker_loses_nothing(start: str, end: str) -> None:
    for size in range(1, len(start)):
        assert said(start, end, start[:size]) == [Text(start[:size])]
    for size in range(1, len(end)):
        assert said(start, end, f"{start}abc{end[:size]}") == [Reasoning(f"abc{end[:size]}")]


@every_family
def test_nothing_of_a_marker_is_told_before_it_is_none(start: str, end: str) -> None:
    for size in range(1, len(end)):
        reader = ReasoningReader(start, end, PlainReader(), is_open=True)
        assert joined(reader.push(f"abc{end[:size]}")) == [Reasoning("abc")]
        assert joined(reader.push("\x00")) == [Reasoning(f"{end[:size]}\x00")]


@every_family
def test_text_like_a_marker_is_text(start: str, end: str) -> None:
    like = f"{end[:-1]} {end[:2]}{end[:-1]}? {start[:-1]}"
    assert said(start, end, f"{start}{like}{end}{like}") == [Reasoning(like), Text(like)]


def test_white_space_amid_reasoning_is_kept() -> None:
    assert think("<think> a \n\n b </think> c  d ") == [Reasoning("a \n\n b"), Text("c  d ")]


def test_white_space_alone_is_content_where_no_marker_stands_beside_it() -> None:
    assert think(" \n ") == [Text(" \n ")]
    assert think("<think>a</think> \n ") == [Reasoning("a")]


def test_characters_that_are_no_white_space_in_ascii_are_kept() -> None:
    assert think("\u00a0<think>a") == [Text("\u00a0<think>a")]
    assert think("<think>\u2003a\u00a0</think>\u00a0b") == [
        Reasoning("\u2003a\u00a0"),
        Text("\u00a0b"),
    ]


def test_reasoning_goes_on_straight_behind_reasoning() -> None:
    text = "<think>a</think>\n<think></think><think>b\n</think>\n\nc"
    assert think(text) == [Reasoning("a\n\nb"), Text("c")]


def test_a_marker_amid_content_is_content() -> None:
    text = "Write <think> and </think>.\n<think>so</think>"
    assert think(text) == [Text(text)]
    assert think(f"<think>a</think>{text}") == [Reasoning("a"), Text(text)]


def test_a_closing_marker_that_closes_nothing_is_left_out() -> None:
    assert think("\n</think>\n\nHi") == [Text("Hi")]
    assert think("abc</think></think>\n</think>def", is_open=True) == [
        Reasoning("abc"),
        Text("def"),
    ]


def test_a_closing_marker_behind_content_is_content() -> None:
    assert think("abc</think>def") == [Text("abc</think>def")]


def test_an_opening_marker_inside_reasoning() -> None:
    """Said at once, it repeats what the prompt did; later, it is of the reasoning."""
    assert think("<think>\nabc</think>def", is_open=True) == [Reasoning("abc"), Text("def")]
    assert think("a <think> b</think>c", is_open=True) == [Reasoning("a <think> b"), Text("c")]


CALL = '<tool_call>{"name": "ping", "arguments": {"x": "<think>"}}</tool_call>'


def with_calls(text: str, *, is_open: bool = True) -> list[Event]:
    return read_every_way(
        lambda: ReasoningReader(
            "<think>",
            "</think>",
            JSON_TOOLS.reader(TOOLS),
            is_open=is_open,
            opens=[JSON_TOOLS.opens],
        ),
        text,
    )


def test_a_call_behind_reasoning_is_handed_on() -> None:
    call = read(JSON_TOOLS.reader(TOOLS), [CALL])
    assert with_calls(f"abc\n</think>\n\n{CALL}") == [Reasoning("abc"), *call]


def test_a_call_at_the_start_of_a_line_ends_reasoning_that_was_not_closed() -> None:
    call = read(JSON_TOOLS.reader(TOOLS), [CALL])
    assert with_calls(CALL) == call
    assert with_calls(f"abc\n  {CALL}") == [Reasoning("abc"), *call]


def test_what_opens_a_call_amid_a_line_of_reasoning_is_reasoning() -> None:
    text = "I write <tool_call> and\n then <tool_call>"
    assert with_calls(f"{text}</think>ok") == [Reasoning(text), Text("ok")]


def test_at_the_end_what_stands_behind_a_shorter_marker_is_kept() -> None:
    def make() -> ReasoningReader:
        opens = ["<t", "<t x>"]
        return ReasoningReader("<a>", "</a>", PlainReader(), is_open=True, opens=opens)

    assert read_every_way(make, "a <t x") == [Reasoning("a <t x")]
    assert read_every_way(make, "a\n<t x") == [Reasoning("a"), Text("<t x")]


def test_where_reasoning_stands_is_told_between_two_pieces() -> None:
    reader = ReasoningReader("<think>", "</think>", PlainReader(), is_open=False)
    states: list[bool] = []
    for piece in ("\n", "<thi", "nk>", "\n", "a", " </thi", "nk>", "\n", "b"):
        reader.push(piece)
        states.append(reader.is_reasoning)
    assert states == [False, False, True, True, True, True, False, False, False]


def test_a_prompt_that_opened_reasoning_is_inside_it_from_the_start() -> None:
    reader = ReasoningReader("<think>", "</think>", PlainReader(), is_open=True)
    assert reader.is_reasoning
    reader.push("</think>")
    assert not reader.is_reasoning


def test_a_model_that_does_not_reason_has_content_alone() -> None:
    reader = ContentReader(PlainReader())
    assert read(reader, ["<think>a", "</think>b"]) == [Text("<think>a</think>b")]
    assert not reader.is_reasoning


FRAMES = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")


def test_frames_around_content_are_left_out() -> None:
    text = "<|open|>response<|sep|> a <|sep|>\n<|close|>response<|sep|><|close|>message<|sep|>"
    assert read_every_way(lambda: FrameReader(FRAMES, PlainReader()), text) == [
        Text(" a <|sep|>\n")
    ]


def test_a_frame_that_is_cut_is_content() -> None:
    text = "a<|close|>respon"
    assert read_every_way(lambda: FrameReader(FRAMES, PlainReader()), text) == [Text(text)]


@pytest.mark.parametrize(
    ("is_open", "text", "expected"),
    [
        (True, "a\n<call>b</think>\n<call>c", ("a\n<call>b", "<call>c")),
        (True, "a</think>\n\n</think>", ("a", "</think>")),
        (True, "a</think><think>b", ("a", "<think>b")),
        (True, "<think>a</think>b", ("a", "b")),
        (False, "</think>", ("", "</think>")),
        (False, "<think>a</think></think>", ("a", "</think>")),
        (False, "<thin", ("", "<thin")),
    ],
)
def test_where_a_grammar_follows_all_behind_reasoning_is_content(
    is_open: bool, text: str, expected: tuple[str, str]
) -> None:
    events = read_every_way(
        lambda: ReasoningReader(
            *("<think>", "</think>", PlainReader()),
            is_open=is_open,
            opens=("<call>",),
            is_strict=True,
        ),
        text,
    )
    reasoning = "".join(one.text for one in events if isinstance(one, Reasoning))
    content = "".join(one.text for one in events if isinstance(one, Text))
    assert (reasoning, content) == expected
