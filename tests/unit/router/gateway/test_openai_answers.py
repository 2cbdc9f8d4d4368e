"""What OpenAI's objects say of the router's responses, the same in both modes."""

import json
from typing import Any

import pytest

from bramley.common.errors import BramleyError, EngineFault
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.openai.chat_answer import ChatStream, ChatWhole
from bramley.router.gateway.openai.completions_answer import CompletionStream, CompletionWhole
from bramley.router.gateway.openai.objects import Told, refusal_of, shown

Response = router_pb2.GenerateResponse
ACCEPTED = Response(accepted=generation_pb2.Accepted(request_id="r1-1"))


def finished(
    reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_STOP,
    index: int = 0,
    **match: Any,
) -> Response:
    usage = types_pb2.Usage(
        prompt_tokens=9,
        completion_tokens=5,
        reasoning_tokens=2,
        cached=types_pb2.CachedTokens(parked=1, ram=2, ssd=4),
    )
    made = generation_pb2.Finished(index=index, reason=reason, usage=usage, **match)
    return Response(finished=made)


def delta(**fields: Any) -> Response:
    return Response(delta=generation_pb2.Delta(**fields))


def whole(kind: Any, *responses: Response, answers: int = 1) -> Any:
    one = kind(Told("m", 7, answers))
    assert [one.add(response) for response in (ACCEPTED, *responses)] == [b""] * (
        len(responses) + 1
    )
    return json.loads(one.end())


def streamed(kind: Any, *responses: Response, answers: int = 1) -> list[Any]:
    one = kind(Told("m", 7, answers, tells_usage=True))
    told = b"".join(one.add(response) for response in (ACCEPTED, *responses)) + one.end()
    *blocks, done, rest = told.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


PAIRS: Any = [(ChatWhole, ChatStream), (CompletionWhole, CompletionStream)]


@pytest.mark.parametrize("kinds", PAIRS)
def test_b055_counts_are_the_same_in_both_modes(kinds: Any) -> None:
    both = (finished(), finished(index=1))
    usage = whole(kinds[0], *both, answers=2)["usage"]
    assert usage == {
        "prompt_tokens": 9,
        "completion_tokens": 10,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    *chunks, last = streamed(kinds[1], *both, answers=2)
    assert (last["usage"], last["choices"]) == (usage, [])
    assert all(chunk["usage"] is None for chunk in chunks)


def test_b055_each_prompt_counts_once_however_many_its_answers() -> None:
    one = CompletionWhole(Told("m", 7, 2, prompts=2))
    for index in (3, 0, 1, 2):
        one.add(finished(index=index))
    told = json.loads(one.end())
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    usage = told["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (18, 20)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 14}


@pytest.mark.parametrize("kinds", PAIRS)
@pytest.mark.parametrize(
    ("ended", "reason", "matched"),
    [
        (finished(), "stop", None),
        (finished(types_pb2.FINISH_REASON_STOP, stop_token_id=2), "stop", None),
        (finished(types_pb2.FINISH_REASON_STOP_SEQUENCE, stop_string="x"), "stop", "x"),
        (finished(types_pb2.FINISH_REASON_STOP_SEQUENCE, stop_token_id=5), "stop", 5),
        (finished(types_pb2.FINISH_REASON_GRAMMAR_COMPLETE), "stop", None),
        (finished(types_pb2.FINISH_REASON_LENGTH), "length", None),
        (finished(types_pb2.FINISH_REASON_TOOL_CALLS), "tool_calls", None),
    ],
)
def test_each_end_has_its_word(kinds: Any, ended: Response, reason: str, matched: Any) -> None:
    (choice,) = whole(kinds[0], ended)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, matched)
    *_, end, _ = streamed(kinds[1], ended)
    (part,) = end["choices"]
    assert (part["finish_reason"], part.get("stop_reason")) == (reason, matched)


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair])
def test_an_answer_that_breaks_off_is_no_answer(kind: Any) -> None:
    one = kind(Told("m", 7, 2))
    one.add(ACCEPTED)
    one.add(finished())
    with pytest.raises(EngineFault):
        one.end()
    with pytest.raises(BramleyError, match="Abort"):
        one.add(finished(types_pb2.FINISH_REASON_ABORTED, index=1))


def test_parts_of_a_call_are_one_call() -> None:
    parts = [
        delta(tool_calls=[types_pb2.ToolCallDelta(index=0, id="c", name="f")]),
        delta(tool_calls=[types_pb2.ToolCallDelta(index=0, arguments_json='{"a"')]),
        delta(tool_calls=[types_pb2.ToolCallDelta(index=0, arguments_json=": 1}", ended=True)]),
        delta(tool_calls=[types_pb2.ToolCallDelta(index=0, ended=True)]),
    ]
    (choice,) = whole(ChatWhole, *parts, finished())["choices"]
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert choice["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": function}
    ]
    assert choice["message"]["content"] is None
    chunks = streamed(ChatStream, *parts, finished())
    told = [c["choices"][0]["delta"]["tool_calls"] for c in chunks[1:-2]]
    assert told == [
        [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}],
    ]


def test_b044_each_alternative_has_its_own_text() -> None:
    packed = types_pb2.Logprobs(
        token_ids=[1, 2],
        logprobs=[-1, -2],
        top=2,
        top_token_ids=[1, 3, 2, 4],
        top_logprobs=[-1, -1.5, -2, -9999],
        token_bytes=[b"a", b"\xe2\x82"],
        top_token_bytes=[b"a", b"<s>", b"\xe2\x82", b""],
    )
    (choice,) = whole(ChatWhole, delta(text="a", logprobs=packed), finished())["choices"]
    first, second = choice["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in first["top_logprobs"]] == [
        ("a", -1),
        ("<s>", -1.5),
    ]
    assert (second["token"], second["bytes"]) == (r"bytes:\xe2\x82", [0xE2, 0x82])
    assert second["top_logprobs"][1] == {"token": "", "logprob": -9999, "bytes": []}
    (choice,) = whole(CompletionWhole, delta(text="a", logprobs=packed), finished())["choices"]
    assert choice["logprobs"]["top_logprobs"][0] == {"a": -1, "<s>": -1.5}
    assert shown("\u20ac".encode()) == "\u20ac"


def test_a_failure_names_the_body_s_field_once() -> None:
    error = refusal_of(
        Failure(400, "stop.strings: too many", "INVALID_FIELD", "stop.strings", True)
    )
    assert (error.error.param, error.error.message) == ("stop", "stop: too many")
    problem = "reasoning.enabled: chat.template_kwargs.thinking says something else"
    other = refusal_of(Failure(400, problem, "INVALID_FIELD", "reasoning.enabled", True)).error
    assert other.message == "reasoning_effort: chat_template_kwargs.thinking says something else"
    own = refusal_of(Failure(400, "text: x", "INVALID_FIELD", "text"))
    assert (own.error.param, own.error.message) == ("text", "text: x")
