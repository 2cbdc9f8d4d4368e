"""What Anthropic's objects say of the router's responses, the same in both modes."""

import json
from typing import Any

import pytest

from bramley.common.errors import BramleyError, EngineFault
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from bramley.router.gateway.anthropic.messages import read
from bramley.router.gateway.anthropic.messages_answer import MessageStream, MessageWhole, Told
from bramley.router.gateway.anthropic.objects import refusal_of
from bramley.router.gateway.failures import Failure

Response = router_pb2.GenerateResponse
Part = types_pb2.ToolCallDelta
ACCEPTED = Response(accepted=generation_pb2.Accepted(request_id="r1-1"))
CACHED = types_pb2.CachedTokens(parked=1, ram=2, ssd=4)
STARTED = Response(started=generation_pb2.Started(prompt_tokens=9, cached=CACHED))
TOLD = Told("m", frozenset({"eager"}))


def finished(
    reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_STOP, **match: Any
) -> Response:
    usage = types_pb2.Usage(prompt_tokens=9, completion_tokens=5, reasoning_tokens=2, cached=CACHED)
    return Response(finished=generation_pb2.Finished(reason=reason, usage=usage, **match))


def delta(**fields: Any) -> Response:
    return Response(delta=generation_pb2.Delta(**fields))


def call(*parts: str, name: str = "f", index: int = 0) -> list[Response]:
    first = Part(index=index, id=f"t{index}", name=name)
    more = [Part(index=index, arguments_json=part) for part in parts]
    return [delta(tool_calls=[part]) for part in (first, *more, Part(index=index, ended=True))]


def whole(*responses: Response) -> Any:
    one = MessageWhole(TOLD)
    assert {one.add(response) for response in (ACCEPTED, STARTED, *responses)} == {b""}
    return json.loads(one.end())


def streamed(*responses: Response) -> list[Any]:
    one = MessageStream(TOLD)
    told = b"".join(one.add(response) for response in (ACCEPTED, STARTED, *responses)) + one.end()
    *blocks, rest = told.split(b"\n\n")
    assert rest == b""
    return [parsed(block) for block in blocks]


def parsed(block: bytes) -> Any:
    name, data = block.split(b"\n")
    value = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + value["type"].encode()
    return value


def joined(events: list[Any]) -> Any:
    """Put a stream's message together, as clients do."""
    start, ping, *rest = events
    assert (start["type"], ping) == ("message_start", {"type": "ping"})
    message, blocks = start["message"], start["message"]["content"]
    inputs: dict[int, str] = {}
    for event in rest:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
            case "content_block_delta":
                join(blocks[event["index"]], event["delta"], inputs, event["index"])
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
            case kind:
                assert kind in {"content_block_stop", "message_stop"}
    for place, text in inputs.items():
        blocks[place]["input"] = json.loads(text)
    return message


def join(block: Any, part: Any, inputs: dict[int, str], place: int) -> None:
    match part["type"]:
        case "text_delta":
            block["text"] += part["text"]
        case "thinking_delta":
            block["thinking"] += part["thinking"]
        case "signature_delta":
            block["signature"] = part["signature"]
        case _:
            assert block["input"] == {}
            inputs[place] = inputs.get(place, "") + part["partial_json"]


THOUGHTFUL = [delta(reasoning_text="a"), delta(reasoning_text="b", text="c"), delta(text="d")]
CALLING = [
    delta(reasoning_text="hm", text="I see. ", tool_calls=[Part(index=0, id="t0", name="f")]),
    delta(tool_calls=[Part(index=0, arguments_json='{"x": '), Part(index=0, arguments_json="1}")]),
    delta(tool_calls=[Part(index=0, ended=True), Part(index=1, id="t1", name="g")]),
    delta(tool_calls=[Part(index=1, arguments_json="{}", ended=True)]),
    delta(text="Done."),
]


def test_a_stream_is_to_the_letter() -> None:
    usage = {
        "input_tokens": 2,
        "cache_read_input_tokens": 7,
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
        "cache_creation_input_tokens": 0,
    }
    message: Any = {
        "type": "message",
        "id": "msg_r1-1",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    after = usage | {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}}
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    assert streamed(*THOUGHTFUL, finished()) == [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": thinking},
        block_delta(0, "thinking_delta", thinking="a"),
        block_delta(0, "thinking_delta", thinking="b"),
        block_delta(0, "signature_delta", signature="unsigned"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        block_delta(1, "text_delta", text="c"),
        block_delta(1, "text_delta", text="d"),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": after,
        },
        {"type": "message_stop"},
    ]


def block_delta(index: int, kind: str, **fields: str) -> Any:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


@pytest.mark.parametrize(
    "responses",
    [
        [],
        THOUGHTFUL,
        CALLING,
        call('{"a"', ': "b"}', name="eager"),
        call(),
        call("{} {"),
        [*call('{"a": 1}'), *call('{"b": ', index=1)],
        [delta(text="a"), delta(reasoning_text="b"), delta(text="c")],
    ],
)
def test_b055_both_modes_say_the_same(responses: list[Response]) -> None:
    answer = whole(*responses, finished())
    assert joined(streamed(*responses, finished())) == answer
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 9
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (5, {"thinking_tokens": 2})


def test_blocks_stand_in_the_order_of_the_answer() -> None:
    answer = whole(*CALLING, finished(types_pb2.FINISH_REASON_TOOL_CALLS))
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
        {"type": "text", "text": "I see. "},
        {"type": "tool_use", "id": "t0", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "t1", "name": "g", "input": {}},
        {"type": "text", "text": "Done."},
    ]


def test_an_answer_of_nothing_has_no_blocks() -> None:
    assert whole(finished())["content"] == []
    kinds = [event["type"] for event in streamed(finished())]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    "written",
    ['{"city": "Os', "[1]", "", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000, "{} {}", '"x"'],
)
def test_an_input_that_is_no_object_is_told_as_text_in_one(written: str) -> None:
    responses = [*call(written[:3], written[3:]), finished()]
    answer = whole(*responses)
    (block,) = answer["content"]
    assert block["input"] == {"INVALID_JSON": written}
    assert answer["stop_reason"] == "tool_use"  # whoever runs the tools can say what is wrong
    assert joined(streamed(*responses)) == answer


def test_an_input_is_told_at_once_and_exactly() -> None:
    written = '{"n": 100000000000000000000, "a":  "\\u00e9"}'
    events = streamed(*call(written[:9], written[9:]), finished())
    assert [event["delta"] for event in events if event["type"] == "content_block_delta"] == [
        {"type": "input_json_delta", "partial_json": written}
    ]


def test_an_eager_tool_s_input_is_told_as_it_is_written() -> None:
    events = streamed(*call('{"a', '": }', name="eager"), finished())
    parts = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [part["partial_json"] for part in parts] == ['{"a', '": }']
    (block,) = whole(*call('{"a', '": }', name="eager"), finished())["content"]
    assert block["input"] == {"INVALID_JSON": '{"a": }'}


@pytest.mark.parametrize(
    ("ended", "reason", "matched"),
    [
        (finished(), "end_turn", None),
        (finished(stop_token_id=2), "end_turn", None),
        (
            finished(types_pb2.FINISH_REASON_STOP_SEQUENCE, stop_string="x"),
            "stop_sequence",
            "x",
        ),
        (finished(types_pb2.FINISH_REASON_GRAMMAR_COMPLETE), "end_turn", None),
        (finished(types_pb2.FINISH_REASON_LENGTH), "max_tokens", None),
        (finished(types_pb2.FINISH_REASON_TOOL_CALLS), "tool_use", None),
    ],
)
def test_each_end_has_its_word(ended: Response, reason: str, matched: str | None) -> None:
    for answer in (whole(ended), joined(streamed(ended))):
        assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, matched)


def test_a_call_that_the_limit_cut_ends_by_the_limit() -> None:
    answer = whole(*call('{"a": ')[:-1], finished(types_pb2.FINISH_REASON_LENGTH))
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"INVALID_JSON": '{"a": '}


@pytest.mark.parametrize("kind", [MessageWhole, MessageStream])
def test_an_answer_that_breaks_off_is_no_answer(kind: Any) -> None:
    one = kind(TOLD)
    one.add(ACCEPTED)
    one.add(delta(text="a"))
    with pytest.raises(EngineFault):
        one.end()
    with pytest.raises(BramleyError, match="Abort"):
        one.add(finished(types_pb2.FINISH_REASON_ABORTED))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (499, "api_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_each_status_has_its_kind_of_error(status: int, kind: str) -> None:
    assert refusal_of(Failure(status, "x", "WHY")).error.type == kind


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for() -> None:
    problem = "messages: 90 prompt tokens and 20 to generate exceed the context of 100"
    failure = Failure(400, problem, "CONTEXT_LENGTH_EXCEEDED", "messages")
    assert refusal_of(failure).error.message == f"prompt is too long: {problem}"


def test_who_asks_why_no_more_was_cached_is_told_that_nobody_knows() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    for diagnostics in (None, {"previous_message_id": "msg_1"}):
        one = read({**body, "diagnostics": diagnostics}, 0).answer
        for response in (ACCEPTED, STARTED, finished()):
            one.add(response)
        expected = diagnostics and {"cache_miss_reason": {"type": "unavailable"}}
        assert json.loads(one.end()).get("diagnostics") == expected


def test_a_stream_that_fails_says_so_as_an_event() -> None:
    one = MessageStream(TOLD)
    failure = Failure(503, "stop.strings: gone", "WORKER_LOST", "stop.strings", True, None, "r1")
    (name, data) = one.fail(failure).removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {
            "type": "overloaded_error",
            "message": "stop_sequences: gone",
            "details": {"error_code": "worker_lost"},
        },
        "request_id": "r1",
    }
    assert json.loads(MessageWhole(TOLD).fail(Failure(500, "x", "X")))["request_id"] is None
