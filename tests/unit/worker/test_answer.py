"""One answer's messages: text, ids and counts end at the same token."""

from collections.abc import Iterable, Sequence

import pytest

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.answer import Answer, Reading
from bramley.worker.engine.outputs import Seated, Token
from bramley.worker.engine.stopping import Finish
from bramley.worker.reading.events import (
    AnswerReader,
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    PlainReader,
    Reasoning,
    Text,
    ToolSpec,
)
from bramley.worker.reading.families import Family, reader
from bramley.worker.request import TokenLogprob


class Bytes:
    """A detokenizer of one byte a token."""

    def push(self, ids: Iterable[int]) -> str:
        return "".join(map(chr, ids))

    def finish(self) -> str:
        return ""


def tokens(text: str, finish: Finish | None = None) -> list[Token]:
    made = [Token("r", ord(character), 1.0) for character in text]
    if finish is not None:
        made[-1] = Token("r", ord(text[-1]), 2.0, finish)
    return made


class Signs:
    """A reader of signs: ``(`` to ``)`` is reasoning, ``{`` to ``}`` a call; ``!`` spoils it."""

    is_reasoning = False

    def __init__(self) -> None:
        self._calls = 0
        self._in_call = self._is_bad = False

    def push(self, text: str) -> Sequence[Event]:
        return [event for sign in text for event in self._read(sign)]

    def finish(self) -> Sequence[Event]:
        return []

    def _read(self, sign: str) -> Sequence[Event]:
        match sign:
            case "(" | ")":
                self.is_reasoning = sign == "("
                return []
            case "{":
                self._in_call, self._is_bad = True, False
                return [CallStart(self._calls, "f", "id" if self._calls else "")]
            case "}":
                self._in_call = False
                self._calls += 1
                return [CallEnd(self._calls - 1, self._is_bad)]
            case _:
                return self._within(sign)

    def _within(self, sign: str) -> Sequence[Event]:
        if self.is_reasoning:
            return [Reasoning(sign)]
        self._is_bad |= sign == "!"
        return [CallArguments(self._calls, sign) if self._in_call else Text(sign)]


def answer(reading_by: AnswerReader | None = None, **request: object) -> Answer:
    message = generation_pb2.GenerateRequest(text="x", **request)  # type: ignore[arg-type]
    shown = frozenset({ord("}")})
    reading = Reading(Bytes(), reading_by or PlainReader(), shown, lambda number: bytes([number]))
    return Answer(message, 2, reading, [7, 8, 9], types_pb2.CachedTokens())


def told(one: Answer, *batches: list[Token]) -> list[generation_pb2.Delta]:
    deltas: list[generation_pb2.Delta] = []
    for batch in batches:
        for token in batch:
            one.take(token)
        one.read()
        deltas += one.deltas()
    return deltas


def finished(one: Answer) -> generation_pb2.Finished:
    assert one.finished is not None
    return one.finished


def stop(**conditions: object) -> types_pb2.StopConditions:
    return types_pb2.StopConditions(**conditions)  # type: ignore[arg-type]


def test_what_gathered_shares_a_message() -> None:
    deltas = told(answer(), tokens("abc"), tokens("de"))
    assert [delta.text for delta in deltas] == ["abc", "de"]
    assert [delta.completion_tokens for delta in deltas] == [3, 5]


def test_a_message_holds_no_more_tokens_than_asked_for() -> None:
    limited = answer(stream=types_pb2.StreamOptions(max_tokens_per_message=2))
    assert [len(delta.token_ids) for delta in told(limited, tokens("abcde"))] == [2, 2, 1]


def test_tokens_after_the_stop_string_are_not_part_of_the_answer() -> None:
    one = answer(stop=stop(strings=["cd"]))
    deltas = told(one, tokens("abcdef"), tokens("gh"))
    assert "".join(delta.text for delta in deltas) == "ab"
    assert [token for delta in deltas for token in delta.token_ids] == list(map(ord, "abcd"))
    assert finished(one).usage.completion_tokens == 4
    assert finished(one).stop_string == "cd"


def test_the_tokens_after_a_stop_string_are_cut_at_any_message_size() -> None:
    one = answer(stop=stop(strings=["b"]), stream=types_pb2.StreamOptions(max_tokens_per_message=1))
    assert len(told(one, tokens("abcdef"))) == 2


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab!")])
def test_a_stop_id_is_shown_only_when_asked_for(include: bool, text: str) -> None:
    one = answer(stop=stop(token_ids=[33], include_stop=include))
    deltas = told(one, tokens("ab!", Finish("stop_sequence", 33)))
    assert "".join(delta.text for delta in deltas) == text
    assert finished(one).reason == types_pb2.FINISH_REASON_STOP_SEQUENCE
    assert finished(one).stop_token_id == 33
    assert finished(one).usage.completion_tokens == 3


def test_the_model_s_end_token_is_never_shown() -> None:
    one = answer(stop=stop(include_stop=True))
    assert "".join(d.text for d in told(one, tokens("ab!", Finish("stop", 33)))) == "ab"
    assert finished(one).reason == types_pb2.FINISH_REASON_STOP


def test_a_stop_string_met_by_the_last_token_beats_the_limit() -> None:
    one = answer(stop=stop(strings=["c"]))
    told(one, tokens("abc", Finish("length")))
    assert finished(one).reason == types_pb2.FINISH_REASON_STOP_SEQUENCE


def test_held_text_is_delivered_at_the_end() -> None:
    one = answer(stop=stop(strings=["cdX"]))
    assert "".join(d.text for d in told(one, tokens("abcd", Finish("length")))) == "abcd"
    assert finished(one).reason == types_pb2.FINISH_REASON_LENGTH


def test_omitted_parts_are_not_sent() -> None:
    no_text = told(answer(stream=types_pb2.StreamOptions(omit_text=True)), tokens("ab"))
    no_ids = told(answer(stream=types_pb2.StreamOptions(omit_token_ids=True)), tokens("ab"))
    assert [(delta.text, len(delta.token_ids)) for delta in no_text] == [("", 2)]
    assert [(delta.text, len(delta.token_ids)) for delta in no_ids] == [("ab", 0)]


def likely(text: str, finish: Finish | None = None) -> list[Token]:
    """Tokens with the logprob -1, -2, ... and two alternatives each."""
    made = [
        Token("r", ord(character), 1.0, None, TokenLogprob(-place, (1, 2), (-0.5, -1.5)))
        for place, character in enumerate(text, 1)
    ]
    if finish is not None:
        last = made[-1]
        made[-1] = Token("r", last.token, 2.0, finish, last.logprob)
    return made


def test_every_message_names_its_index() -> None:
    one = answer()
    deltas = told(one, tokens("ab"), tokens("c", Finish("length")))
    assert {delta.index for delta in deltas} == {finished(one).index} == {2}


def test_logprobs_are_packed_beside_their_tokens() -> None:
    one = answer(logprobs=types_pb2.LogprobOptions(top=2))
    first, second = told(one, likely("ab"), likely("c"))
    assert list(first.logprobs.token_ids) == list(first.token_ids) == [97, 98]
    assert list(first.logprobs.logprobs) == [-1, -2]
    assert first.logprobs.top == 2
    assert list(first.logprobs.top_token_ids) == [1, 2, 1, 2]
    assert list(first.logprobs.top_logprobs) == [-0.5, -1.5] * 2
    assert list(second.logprobs.token_ids) == [99]
    assert not first.HasField("prompt_logprobs")


def test_each_token_of_the_logprobs_says_its_own_bytes_where_asked_for() -> None:
    asked = types_pb2.LogprobOptions(top=2, prompt=True, bytes=True)
    one = answer(logprobs=asked)
    one.take_prompt([TokenLogprob(-1, (4, 5), (-1, -2)), TokenLogprob(-2, (6, 7), (-1, -2))])
    (delta,) = told(one, likely("ab"))
    assert list(delta.logprobs.token_bytes) == [b"a", b"b"]
    assert list(delta.logprobs.top_token_bytes) == [b"\1", b"\2"] * 2
    assert list(delta.prompt_logprobs.token_bytes) == [b"\x08", b"\x09"]
    assert list(delta.prompt_logprobs.top_token_bytes) == [b"\4", b"\5", b"\6", b"\7"]
    (plain,) = told(answer(logprobs=types_pb2.LogprobOptions(top=2)), likely("ab"))
    assert not plain.logprobs.token_bytes
    assert not plain.logprobs.top_token_bytes


def test_logprobs_are_cut_with_the_text_at_any_message_size() -> None:
    for size in range(4):
        one = answer(
            stop=stop(strings=["bc"]),
            logprobs=types_pb2.LogprobOptions(),
            stream=types_pb2.StreamOptions(max_tokens_per_message=size),
        )
        deltas = told(one, likely("abcdef"))
        assert [value for d in deltas for value in d.logprobs.logprobs] == [-1, -2, -3]
        assert [token for d in deltas for token in d.token_ids] == list(map(ord, "abc"))
        assert "".join(d.text for d in deltas) == "a"
        assert deltas[-1].completion_tokens == finished(one).usage.completion_tokens == 3


def test_logprobs_come_even_where_text_and_ids_are_left_out() -> None:
    options = types_pb2.StreamOptions(omit_text=True, omit_token_ids=True)
    (delta,) = told(answer(logprobs=types_pb2.LogprobOptions(), stream=options), likely("ab"))
    assert list(delta.logprobs.token_ids) == [97, 98]
    assert not delta.token_ids


def test_the_prompt_s_logprobs_come_once_with_the_first_token() -> None:
    one = answer(logprobs=types_pb2.LogprobOptions(top=1, prompt=True))
    one.take_prompt([TokenLogprob(-1.0, (4,), (-0.5,)), TokenLogprob(-2.0, (5,), (-1.5,))])
    assert not list(one.deltas())
    first, second = told(one, likely("a"), likely("b"))
    assert list(first.prompt_logprobs.token_ids) == [8, 9]
    assert list(first.prompt_logprobs.logprobs) == [-1, -2]
    assert list(first.prompt_logprobs.top_token_ids) == [4, 5]
    assert not second.HasField("prompt_logprobs")


@pytest.mark.parametrize(
    ("min_tokens", "text", "ended"),
    [(0, "", True), (1, "", True), (2, "abX", True), (4, "abX", True), (5, "abXab", False)],
)
def test_a_stop_string_ends_nothing_within_the_first_min_tokens(
    min_tokens: int, text: str, ended: bool
) -> None:
    one = answer(stop=stop(strings=["ab"], min_tokens=min_tokens))
    deltas = told(one, tokens("abXab"))
    assert ("".join(d.text for d in deltas), one.finished is not None) == (text, ended)


def test_a_stop_string_that_begins_within_the_first_min_tokens_counts() -> None:
    one = answer(stop=stop(strings=["bc"], min_tokens=2))
    assert "".join(d.text for d in told(one, tokens("abcd"))) == "a"
    assert finished(one).stop_string == "bc"


def test_a_row_that_is_seated_again_keeps_its_first_times() -> None:
    one = answer()
    one.seated(Seated("r", 0.25, restore_s=0.5))
    one.seated(Seated("r", 9.0))
    told(one, tokens("ab", Finish("length")))
    assert finished(one).timings.prefill.ToMilliseconds() == 750
    assert finished(one).timings.restore.ToMilliseconds() == 500


def parts(deltas: list[generation_pb2.Delta]) -> list[tuple[str, str, list[str]]]:
    """Reasoning, text and calls of each message."""
    return [
        (d.reasoning_text, d.text, [f"{c.name}{c.arguments_json}" for c in d.tool_calls])
        for d in deltas
    ]


def test_reasoning_text_and_calls_share_a_message_as_long_as_they_keep_their_order() -> None:
    one = answer(Signs())
    deltas = told(one, tokens("(ab)cd{e}{f}", Finish("stop", ord("}"))))
    assert parts(deltas) == [("ab", "cd", ["fe", "ff"])]
    first, second = deltas[0].tool_calls
    assert (first.index, second.index, second.id) == (0, 1, "id")
    assert len(first.id) == 9
    assert first.id.isalnum()
    assert first.ended
    assert second.ended


def test_what_is_said_in_another_order_goes_into_the_next_message() -> None:
    deltas = told(answer(Signs()), tokens("a(b)c{d}e"))
    assert parts(deltas) == [("", "a", []), ("b", "c", ["fd"]), ("", "e", [])]  # "(" says nothing
    assert [len(d.token_ids) for d in deltas] == [2, 6, 1]
    assert [d.completion_tokens for d in deltas] == [2, 8, 9]


def test_a_call_goes_on_in_the_next_message_without_its_name() -> None:
    deltas = told(answer(Signs()), tokens("{a"), tokens("b}"))
    assert parts(deltas) == [("", "", ["fa"]), ("", "", ["b"])]
    assert [[call.ended for call in d.tool_calls] for d in deltas] == [[False], [True]]


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("{a}", Finish("stop", ord("}")), types_pb2.FINISH_REASON_TOOL_CALLS),
        ("{a}", Finish("grammar"), types_pb2.FINISH_REASON_TOOL_CALLS),
        ("{a}", Finish("length"), types_pb2.FINISH_REASON_LENGTH),
        ("{a", Finish("length"), types_pb2.FINISH_REASON_LENGTH),
        ("{!}", Finish("stop", ord("}")), types_pb2.FINISH_REASON_STOP),
        ("{!}{a}", Finish("stop", ord("}")), types_pb2.FINISH_REASON_TOOL_CALLS),
        ("ab", Finish("grammar"), types_pb2.FINISH_REASON_GRAMMAR_COMPLETE),
    ],
)
def test_an_answer_has_called_tools_if_a_call_is_whole_and_the_model_ended_it(
    text: str, finish: Finish, reason: types_pb2.FinishReason.ValueType
) -> None:
    one = answer(Signs())
    told(one, tokens(text, finish))
    assert finished(one).reason == reason


def test_tokens_inside_reasoning_and_its_markers_are_counted() -> None:
    one = answer(Signs())
    deltas = told(one, tokens("(a"), tokens("b)c", Finish("length")))
    assert [d.reasoning_tokens for d in deltas] == [2, 4]
    assert finished(one).usage.reasoning_tokens == 4
    assert finished(one).usage.completion_tokens == 5


def test_stop_strings_end_content_alone() -> None:
    one = answer(Signs(), stop=stop(strings=["ab"]))
    deltas = told(one, tokens("(ab)a{ab}bab"))
    assert parts(deltas) == [("ab", "a", ["fab"]), ("", "b", [])]
    assert finished(one).stop_string == "ab"


_BEGUN = '<tool_call>{"name": "f'
_CALL = '<tool_call>{"name": "f", "arguments": {}}'


@pytest.mark.parametrize("cut", [Finish("length"), Finish("stop_sequence", 0)])
@pytest.mark.parametrize(
    ("text", "cut_text", "own_text"),
    [
        (_BEGUN, "", _BEGUN),
        ("so\n<tool_", "so\n", "so\n<tool_"),
        (f"{_CALL}\n</tool", "", "\n</tool"),
        (f"{_CALL}\n</tool_call>\n{_BEGUN}", "", f"\n{_BEGUN}"),
    ],
)
def test_what_was_begun_of_a_call_is_content_only_where_the_model_itself_ended(
    text: str, cut_text: str, own_text: str, cut: Finish
) -> None:
    for finish, content in ((cut, cut_text), (Finish("stop", 0), own_text)):
        family = Family(tool_format="json_tools")
        one = answer(reader(family, [ToolSpec("f", {})], is_open=False))
        last = "\0" if finish.stop_id is not None else ""
        deltas = told(one, tokens(text + last, finish))
        assert "".join(delta.text for delta in deltas) == content
        assert any(delta.tool_calls for delta in deltas) is text.startswith(_CALL)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    ("text", "told_text", "reason"),
    [
        ("a{b}c", "ac", None),
        ("a{b}c{d}e", "ac", types_pb2.FINISH_REASON_TOOL_CALLS),
        ("{b}{d", "", types_pb2.FINISH_REASON_TOOL_CALLS),
        ("{!}{d}", "", types_pb2.FINISH_REASON_STOP),
    ],
)
def test_an_answer_that_may_call_one_tool_ends_before_a_second_call(
    text: str, told_text: str, reason: types_pb2.FinishReason.ValueType | None, size: int
) -> None:
    stream = types_pb2.StreamOptions(max_tokens_per_message=size)
    one = answer(Signs(), parallel_tool_calls=False, stream=stream)
    deltas = told(one, tokens(text))
    assert "".join(delta.text for delta in deltas) == told_text
    assert {call.index for delta in deltas for call in delta.tool_calls} == {0}
    assert one.is_cut == (reason is not None)
    if reason is not None:
        assert finished(one).reason == reason
        assert finished(one).WhichOneof("match") is None
        assert one.token_ids == list(map(ord, text[: text.rindex("{") + 1]))


def test_an_answer_that_may_call_several_tools_is_not_cut() -> None:
    for request in ({}, {"parallel_tool_calls": True}):
        one = answer(Signs(), **request)
        told(one, tokens("{b}{d}", Finish("stop", ord("}"))))
        assert not one.is_cut


def test_a_malformed_call_is_flagged() -> None:
    (delta,) = told(answer(Signs()), tokens("{!}"))
    (call,) = delta.tool_calls
    assert (call.malformed, call.arguments_json) == (True, "!")


def test_who_wants_no_text_is_sent_none_of_any_kind() -> None:
    (delta,) = told(answer(Signs(), stream={"omit_text": True}), tokens("(a)b{c}"))
    assert parts([delta]) == [("", "", [])]
    assert len(delta.token_ids) == 7
