"""The laws of readers (worker/reading/events.py), for every reader and any text."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.answer import Answer, Reading
from bramley.worker.engine.outputs import Token
from bramley.worker.engine.stopping import Finish
from bramley.worker.reading import harmony
from bramley.worker.reading.events import (
    AnswerReader,
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
    ToolSpec,
)
from bramley.worker.reading.families import Facts, Family, family_of, reader, tool_format
from bramley.worker.reading.tools.formats import FORMATS
from support.reading import check_order, joined, read
from support.tool_calls import NOTHING, TOOLS, quoted_terminal, random_text

MARKERS = [
    ("", ""),
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
]
HARMONY = family_of(Facts(vocabulary=("<|channel|>", "<|message|>")))
FAMILIES: dict[str, list[Family]] = {
    **{
        name: [
            family_of(Facts((), think_start=start, think_end=end, tool_parser=name))
            for start, end in MARKERS
        ]
        for name in ("", *sorted(FORMATS))
    },
    "harmony": [HARMONY],
}
# Without strings, of which a random one does not end.
SIMPLE = (
    ToolSpec("ping", NOTHING),
    ToolSpec(
        "get_weather",
        {
            "type": "object",
            "properties": {"days": {"type": "integer"}, "units": {"enum": ["metric"]}},
            "required": ["days", "units"],
            "additionalProperties": False,
        },
    ),
)
# What else a text may say that could mean something.
SIGNS = [
    "\n", " ", "{", "}", "[", "]", '"', ":", ",", "=", "<", ">", "(", ")", "/", "\\", "|", "'",
    '{"name": "ping", "arguments": {}}', '{"city": "Bern"}', "{}", "ping", "get_weather",
    "city", "to=functions.ping", "analysis", "final", "null", "1", "call:", "functions.ping:0",
    "ä\U0001f600", "\u00a0", "\x00",
]  # fmt: skip
HEADERS = [
    harmony.REASONING_START,
    harmony.CONTENT_START,
    harmony.REASONING_END + harmony.CONTENT_LEAD,
    "<|start|>assistant<|channel|>commentary<|message|>",
    "<|end|><|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>",
]
every_format = pytest.mark.parametrize("name", sorted(FAMILIES))
laws = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Case:
    """A reader to be made."""

    family: Family
    is_open: bool
    has_tools: bool

    def reader(self) -> AnswerReader:
        return reader(self.family, TOOLS if self.has_tools else (), is_open=self.is_open)

    def markers(self) -> list[str]:
        calls = tool_format(self.family)
        written = {*self.family.frames, self.family.start, self.family.end} - {""}
        return sorted(written | (calls.markers if calls else set[str]()))


@cache
def whole_calls(name: str) -> list[str]:
    """Calls as the format's own grammar has them."""
    form = harmony.FORMAT if name == "harmony" else FORMATS[name]
    grammar = form.lark(SIMPLE, quoted_terminal, many=True)
    return [random_text(grammar, seed) for seed in range(3)]


def cases(name: str) -> st.SearchStrategy[Case]:
    return st.builds(Case, st.sampled_from(FAMILIES[name]), st.booleans(), st.booleans())


def parts(case: Case) -> st.SearchStrategy[str]:
    """A marker, the beginning or the end of one, a call, a part of one, a sign, a word."""
    name = case.family.tool_format
    calls = whole_calls(name) if name else ["a"]
    known = st.sampled_from([*(case.markers() or ["<think>"]), *calls])
    return st.one_of(
        st.sampled_from(case.markers() or ["<think>"]),
        st.sampled_from(SIGNS),
        st.sampled_from(calls),
        st.builds(first_part, known, st.floats(0, 1)),
        st.builds(last_part, known, st.floats(0, 1)),
        st.text(max_size=5),
    )


def first_part(text: str, share: float) -> str:
    return text[: int(len(text) * share)]


def last_part(text: str, share: float) -> str:
    return text[int(len(text) * share) :]


def texts(case: Case) -> st.SearchStrategy[str]:
    return st.lists(parts(case), max_size=12).map("".join)


def cut(text: str, places: Iterable[int]) -> list[str]:
    borders = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


cuts = st.lists(st.integers(0, 10_000), max_size=10)


@every_format
@settings(laws, max_examples=60)
@given(data=st.data(), places=cuts)
def test_any_text_is_read_by_the_laws(name: str, data: st.DataObject, places: list[int]) -> None:
    case = data.draw(cases(name))
    text = data.draw(texts(case))
    whole = read(case.reader(), [text])  # law 4: nothing raises
    check_cuts(case, text, cut(text, places), whole)
    check_kept(case.reader().push(text[: places[0] % (len(text) + 1)] if places else text), whole)
    check_order(whole)
    check_arguments(whole)


def check_cuts(case: Case, text: str, pieces: list[str], whole: list[Event]) -> None:
    """Law 1: however a text is cut it says the same, and so does where reasoning stands."""
    assert read(case.reader(), pieces) == whole
    assert read(case.reader(), text) == whole
    one, other = case.reader(), case.reader()
    one.push(text)
    for piece in pieces:
        other.push(piece)
    assert one.is_reasoning == other.is_reasoning


def check_kept(events: Iterable[Event], whole: list[Event]) -> None:
    """Law 2: what came of the beginning of a text is the beginning of what comes of all of it."""
    early = joined(events)
    assert early[:-1] == whole[: max(len(early) - 1, 0)]
    for event in early[-1:]:
        last = whole[len(early) - 1]
        match event, last:
            case (Text(said), Text(all_said)) | (Reasoning(said), Reasoning(all_said)):
                assert all_said.startswith(said)
            case (CallArguments(index, said), CallArguments(other, all_said)):
                assert (index, all_said[: len(said)]) == (other, said)
            case _:
                assert event == last


@every_format
@laws
@given(data=st.data())
def test_law_2_what_can_be_no_marker_is_told_at_once(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    reader = case.reader()
    words = data.draw(st.lists(st.sampled_from(["ü", "§", "ü§ \n §"]), min_size=1))
    for word in words:
        assert "".join(said(reader.push(word))) == word
    assert list(reader.finish()) == []


@every_format
@laws
@given(data=st.data())
def test_law_3_what_is_no_call_is_told(name: str, data: st.DataObject) -> None:
    """Each word comes out, and in order, where there is no call; a header's words do not count."""
    case = data.draw(cases(name))
    markers = HEADERS if name == "harmony" else [*(case.markers() or ["<think>"]), *SIGNS]
    drawn = data.draw(st.lists(st.sampled_from(["\n", " ", *markers]), max_size=10))
    words = [f"§{place}§" for place in range(len(drawn) + 1)]
    pieces = [words[0], *(piece for pair in zip(drawn, words[1:], strict=True) for piece in pair)]
    events = read(case.reader(), pieces)
    if not any(isinstance(event, CallStart) for event in events):
        assert re.findall("§[0-9]+§", "".join(said(events))) == words


@every_format
@laws
@given(data=st.data(), text=st.text(max_size=30))
def test_law_3_a_text_without_markers_is_kept_to_the_letter(
    name: str, data: st.DataObject, text: str
) -> None:
    case = data.draw(cases(name))
    text = f"§{text}§"
    assume(not any(marker in text for marker in case.markers()))
    kind = Reasoning if case.is_open and case.family.start else Text
    assert read(case.reader(), [text]) == [kind(text)]


@every_format
@laws
@given(data=st.data(), lead=st.sampled_from(["", "§", "§\n", "\n"]))
def test_calls_behind_reasoning_are_whole(name: str, data: st.DataObject, lead: str) -> None:
    if not name:
        return
    family = data.draw(st.sampled_from(FAMILIES[name]))
    case = Case(family, is_open=bool(family.start), has_tools=True)
    call = data.draw(st.sampled_from(whole_calls(name)))
    start = "<|start|>assistant" if name == "harmony" and not call.startswith("<|start|>") else ""
    events = read(case.reader(), [f"{lead if case.is_open else ''}{family.closing}{start}{call}"])
    assert shown_text(events) == ""
    starts = [event for event in events if isinstance(event, CallStart)]
    ends = [event for event in events if isinstance(event, CallEnd)]
    assert len(starts) == len(ends) > 0
    assert not any(end.is_malformed for end in ends)


@dataclass
class Whole:
    """A detokenizer whose tokens are all of a text."""

    text: str

    def push(self, ids: Iterable[int]) -> str:
        return self.text

    def finish(self) -> str:
        return ""


CALL_FORMATS = sorted(FAMILIES.keys() - {""})


@pytest.mark.parametrize("name", CALL_FORMATS)
@pytest.mark.parametrize("lead", ["", "§\n"])
def test_of_a_call_that_is_cut_after_any_token_nothing_is_content(name: str, lead: str) -> None:
    family = FAMILIES[name][0]
    text = with_call(name, lead)
    one = reader(family, TOOLS, is_open=False)
    events: list[Event] = []
    for character in text:
        events = joined([*events, *one.push(character)])
        assert lead.startswith(shown_text(events))
    step = max(len(text) // 10, 1)
    for size in {*range(1, len(text), step), *range(len(text) - 5, len(text) + 1)}:
        deltas = told(family, text[:size], Finish("length"))
        early = joined(reader(family, TOOLS, is_open=False).push(text[:size]))
        assert "".join(delta.text for delta in deltas) == shown_text(early)
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert sum(call.ended for call in calls) == len(ends(early))


def with_call(name: str, lead: str) -> str:
    """Write an answer with a call, and what it says before that; it calls once more if it can."""
    call = min(whole_calls(name), key=len)
    if name != "harmony":
        return f"{lead}{call}\n{call}"
    said = f"{HEADERS[1]}{lead}{harmony.END}" if lead else ""
    return f"{said}{HEADERS[4].removeprefix(harmony.END)}{{}}{harmony.CALL}"


def told(family: Family, text: str, finish: Finish) -> list[generation_pb2.Delta]:
    """Tell an answer of one token."""
    reading = Reading(Whole(text), reader(family, TOOLS, is_open=False))
    one = Answer(generation_pb2.GenerateRequest(), 0, reading, [1], types_pb2.CachedTokens())
    one.take(Token("r", 1, 1.0, finish))
    one.read()
    return list(one.deltas())


def ends(events: Iterable[Event]) -> list[CallEnd]:
    return [event for event in events if isinstance(event, CallEnd)]


def said(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Text | Reasoning)]


def shown_text(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def check_arguments(events: Iterable[Event]) -> None:
    """A call that ended well has an object for arguments; one that ended badly has none."""
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, CallArguments):
            arguments[event.index] = arguments.get(event.index, "") + event.text
        if isinstance(event, CallEnd):
            assert is_object(arguments.get(event.index, "")) is not event.is_malformed


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=refuse, parse_int=str), dict)
    except (ValueError, RecursionError):
        return False


def refuse(constant: str) -> None:
    raise ValueError(constant)
