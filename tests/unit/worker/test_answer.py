"""One answer's messages: text, ids and counts end at the same token."""

from collections.abc import Iterable

import pytest

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.answer import Answer
from bramley.worker.engine.outputs import Token
from bramley.worker.engine.stopping import Finish


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


def answer(**request: object) -> Answer:
    message = generation_pb2.GenerateRequest(text="x", **request)  # type: ignore[arg-type]
    return Answer(message, Bytes(), prompt_tokens=3)


def told(one: Answer, *batches: list[Token]) -> list[generation_pb2.Delta]:
    return [delta for batch in batches for delta in one.deltas(batch)]


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
