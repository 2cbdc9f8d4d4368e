"""OpenAI's responses: items to turns and back, the same in both modes, and what is refused."""

import json
from time import thread_time
from typing import Any

import msgspec
import pytest

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from bramley.router.gateway.dialect import Asked
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.openai import responses, responses_failures
from bramley.router.gateway.openai.responses_body import LOGPROBS, ResponseBody
from bramley.router.gateway.openai.stored import Kept

Response = router_pb2.GenerateResponse
ACCEPTED = Response(accepted=generation_pb2.Accepted(request_id="r1"))
TOOL = {"type": "function", "name": "f", "parameters": {"b": 1, "a": 2}}


class Shelf(dict[str, Kept]):
    """What is kept."""

    def read(self, **fields: Any) -> Asked:
        body = {"model": "m", "input": "hello", **fields}
        return responses.read(body, 7, self.get, self.__setitem__)


def requested(**fields: Any) -> generation_pb2.GenerateRequest:
    (request,) = Shelf().read(**fields).requests
    return request


def field_of(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        Shelf().read(**fields)
    return caught.value.field


def delta(**fields: Any) -> Response:
    return Response(delta=generation_pb2.Delta(**fields))


def call(**fields: Any) -> Response:
    return delta(tool_calls=[types_pb2.ToolCallDelta(**fields)])


def finished(
    reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_STOP,
) -> Response:
    usage = types_pb2.Usage(
        prompt_tokens=9,
        completion_tokens=5,
        reasoning_tokens=2,
        cached=types_pb2.CachedTokens(parked=1, ram=2, ssd=4),
    )
    return Response(finished=generation_pb2.Finished(reason=reason, usage=usage))


def said(asked: Asked, *given: Response) -> bytes:
    told = b"".join([asked.answer.add(response) for response in (ACCEPTED, *given)])
    return told + asked.answer.end()


def events(told: bytes) -> list[Any]:
    *blocks, rest = told.split(b"\n\n")
    assert rest == b""
    found: list[Any] = []
    for block in blocks:
        name, data = block.split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


ANSWERS: Any = {
    "said": [delta(text="he"), delta(text="llo"), finished()],
    "nothing": [finished()],
    "thought": [delta(reasoning_text="why", text="he"), delta(text="llo"), finished()],
    "called": [
        delta(text="x"),
        call(index=0, id="c1", name="f"),
        call(index=0, arguments_json='{"a"'),
        call(index=0, arguments_json=": 1}", ended=True),
        call(index=1, id="c2", name="g", arguments_json="{}", ended=True),
        call(index=1, ended=True),
        finished(types_pb2.FINISH_REASON_TOOL_CALLS),
    ],
    "cut": [
        delta(text="x"),
        call(index=0, id="c1", name="f", arguments_json='{"a"'),
        finished(types_pb2.FINISH_REASON_LENGTH),
    ],
}


@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_b055_a_stream_s_last_event_is_the_whole_answer(given: list[Response]) -> None:
    whole = json.loads(said(Shelf().read(), *given))
    told = events(said(Shelf().read(stream=True), *given))
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert told[-1]["type"] == f"response.{whole['status']}"
    assert told[-1]["response"] == whole
    done = [event for event in told if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == whole["output"]
    assert [event["output_index"] for event in done] == [*range(len(whole["output"]))]


@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_what_grows_is_in_the_end_what_is_done(given: list[Response]) -> None:
    grown: dict[str, str] = {}
    for event in events(said(Shelf().read(stream=True), *given)):
        kind, _, step = event["type"].removeprefix("response.").rpartition(".")
        if step == "delta":
            grown[event["item_id"]] = grown.get(event["item_id"], "") + event["delta"]
        elif step == "done" and kind in {"output_text", "reasoning_text"}:
            assert event["text"] == grown.pop(event["item_id"])
        elif step == "done" and kind == "function_call_arguments":
            assert event["arguments"] == grown.pop(event["item_id"])
    assert not grown


def test_what_was_thought_said_and_called_are_items() -> None:
    given = [delta(reasoning_text="why"), *ANSWERS["called"]]
    thought, text, first, second = json.loads(said(Shelf().read(), *given))["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert (text["role"], text["content"][0]["text"]) == ("assistant", "x")
    assert (first["call_id"], first["name"], first["arguments"]) == ("c1", "f", '{"a": 1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("c2", "g", "{}")
    assert {item["status"] for item in (thought, text, first, second)} == {"completed"}


def test_what_was_cut_is_incomplete() -> None:
    whole = json.loads(said(Shelf().read(), *ANSWERS["cut"]))
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]


def test_counts_have_their_names() -> None:
    assert json.loads(said(Shelf().read(), finished()))["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }


def test_log_probabilities_are_those_of_what_is_said() -> None:
    def packed(*tokens: bytes) -> types_pb2.Logprobs:
        return types_pb2.Logprobs(logprobs=[-1.0] * len(tokens), token_bytes=tokens)

    given = [
        delta(reasoning_text="why", reasoning_tokens=1, logprobs=packed(b"why")),
        delta(
            text="a", reasoning_tokens=2, logprobs=packed(b"</think>", b"\n\n", b"a", b"\xe2\x82")
        ),
        delta(text="\u20acb", reasoning_tokens=2, logprobs=packed(b"\xac", b"bc")),
        delta(text="c", reasoning_tokens=2, logprobs=packed(b"<call>")),
        call(index=0, id="c1", name="f", ended=True),
        delta(reasoning_tokens=2, logprobs=packed(b"</call>", b"<end>")),
        finished(),
    ]
    asked = {"include": [LOGPROBS], "top_logprobs": 0}
    _, text, _ = json.loads(said(Shelf().read(**asked), *given))["output"]
    told = [bytes(one["bytes"]) for one in text["content"][0]["logprobs"]]
    assert told == [b"a", b"\xe2\x82", b"\xac", b"bc"]


def test_log_probabilities_are_told_again_but_not_kept_with_the_conversation() -> None:
    logprobs = types_pb2.Logprobs(logprobs=[-1.0], token_bytes=[b"a"])
    shelf = Shelf()
    given = [
        {"role": "assistant", "content": [{"type": "output_text", "text": "x", "logprobs": [1]}]}
    ]
    asked = shelf.read(input=given, include=[LOGPROBS])
    told = said(asked, delta(text="a", logprobs=logprobs), finished())
    kept = shelf["resp_r1"]
    assert kept.body == told
    assert json.loads(told)["output"][0]["content"][0]["logprobs"]
    for item in json.loads(msgspec.json.encode(kept.conversation)):
        assert item["content"][0]["logprobs"] == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_failure_is_an_error_and_the_end(begun: bool) -> None:
    answer = Shelf().read(stream=True).answer
    told = answer.add(ACCEPTED)
    if begun:
        told += answer.add(delta(text="x"))
    told += answer.fail(Failure(500, "met a NaN", "ENGINE_FAULT"))
    first, *_, error, failed = events(told)
    assert first["type"] == "response.created"
    assert (error["type"], error["code"], error["message"]) == (
        "error",
        "engine_fault",
        "met a NaN",
    )
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "met a NaN"}


def test_a_failure_of_a_field_names_it_as_the_body_does() -> None:
    problem = "chat: 9 prompt tokens and 9 to generate exceed the context of 9"
    failure = Failure(400, problem, "CONTEXT_LENGTH_EXCEEDED", "chat", is_router=True)
    *_, error, failed = events(Shelf().read(stream=True).answer.fail(failure))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert failed["response"]["error"]["code"] == "invalid_prompt"
    assert failed["response"]["error"]["message"].startswith("input: 9 prompt tokens")


def test_an_answer_goes_on_with_all_that_was_before() -> None:
    shelf = Shelf()
    first = shelf.read(instructions="be brief", input="hello")
    said(first, delta(reasoning_text="why"), *ANSWERS["called"])
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    second = shelf.read(previous_response_id="resp_r1", input=[output])
    (request,) = second.requests
    user, model, tool = request.chat.messages
    assert (user.role, user.content) == ("user", "hello")
    assert (model.role, model.content, model.reasoning_content) == ("assistant", "x", "why")
    assert [(made.id, made.name, made.arguments_json) for made in model.tool_calls] == [
        ("c1", "f", '{"a": 1}'),
        ("c2", "g", "{}"),
    ]
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "c1", "42")
    said(second, *ANSWERS["said"])
    kept = shelf["resp_r1"]
    assert [type(item).__name__ for item in kept.items] == [
        "Message",
        "Reasoning",
        "Message",
        "FunctionCall",
        "FunctionCall",
        "FunctionCallOutput",
    ]
    assert all(item.id for item in kept.conversation)
    # Brackets and commas between items count or not, by what is encoded together.
    assert abs(kept.text_bytes - len(msgspec.json.encode(kept.conversation))) < 200


def test_an_answer_s_items_can_be_given_back() -> None:
    told = json.loads(said(Shelf().read(), delta(reasoning_text="why"), *ANSWERS["called"]))
    shelf = Shelf()
    said(shelf.read(), delta(reasoning_text="why"), *ANSWERS["called"])
    (by_id,) = shelf.read(previous_response_id="resp_r1", input="and?").requests
    again = [
        {"role": "user", "content": "hello"},
        *told["output"],
        {"role": "user", "content": "and?"},
    ]
    assert requested(input=again).chat == by_id.chat


def test_each_of_a_model_s_turns_stands_by_itself() -> None:
    def one(role: str, content: Any) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": content}

    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    made = requested(
        input=[
            one("developer", "brief"),
            one("user", parts),
            one("assistant", "x"),
            one("assistant", [{"type": "output_text", "text": "y"}]),
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "z"}],
            },
            one("user", "c"),
        ]
    ).chat.messages
    assert [turn.role for turn in made] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "assistant",
        "user",
    ]
    assert [part.text for part in made[1].parts] == ["a", "b"]
    assert [turn.content for turn in made[2:5]] == ["x", "y", ""]
    assert made[4].HasField("content")
    assert made[4].reasoning_content == "z"


def test_what_is_not_to_be_kept_is_not() -> None:
    shelf = Shelf()
    said(shelf.read(store=False), finished())
    assert not shelf


def test_fields_are_passed_on() -> None:
    made = requested(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.25,
        include=[LOGPROBS, "reasoning.encrypted_content"],
        top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"b": 1}, "strict": True}},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        metadata={"a": "b"},
        prompt_cache_key="k",
        service_tier="flex",
        safety_identifier="s",
    )
    assert made.stop.max_tokens == 9
    assert (made.sampling.temperature, made.sampling.top_p) == (0.5, 0.25)
    assert (made.logprobs.top, made.logprobs.bytes) == (2, True)
    assert made.reasoning.effort == "low"
    assert made.constraint.json_schema == '{"b":1}'
    assert [(tool.name, tool.parameters_json_schema) for tool in made.tools] == [
        ("f", '{"b":1,"a":2}')
    ]
    assert made.tool_choice.name == "f"
    assert (made.HasField("parallel_tool_calls"), made.parallel_tool_calls) == (True, False)
    assert dict(made.labels) == {"a": "b"}
    assert (made.session_key, made.fairness_key) == ("k", "s")
    assert made.priority == types_pb2.PRIORITY_CLASS_BULK
    assert requested(text={"format": {"type": "json_object"}}).constraint.json_object
    assert requested(reasoning={"effort": "none"}).reasoning.HasField("enabled")


def test_what_is_left_out_or_null_stays_unsaid() -> None:
    nulls = dict.fromkeys(ResponseBody.__struct_fields__)
    kept = {"model": "m", "input": "hello"}
    made = requested(**{**nulls, **kept})
    assert made == requested()
    assert not made.HasField("tool_choice")
    assert not made.HasField("constraint")
    assert not made.stop.HasField("max_tokens")


REFUSED: Any = [
    ({"input": []}, "input"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
    ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
    ({"input": [{"id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": "", "phase": "commentary"}]}, "input[0].phase"),
    (
        {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
        "input[0].encrypted_content",
    ),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"tools": [TOOL, {"type": "web_search", "filters": {}}]}, "tools[1].type"),
    ({"tools": [{**TOOL, "strict": True}]}, "tools[0].strict"),
    ({"tools": [{**TOOL, "async": True}]}, "tools[0].async"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.type"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "text", "name": "n"}}}, "text.format.name"),
    ({"stream_options": {}}, "stream_options"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"conversation": "c"}, "conversation"),
    ({"messages": []}, "messages"),
    ({"previous_response_id": "resp_x"}, "previous_response_id"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED)
def test_what_is_not_served_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    assert field_of(**fields) == field


@pytest.mark.parametrize(
    ("router", "body"),
    [
        ("chat.messages[3].content", "input"),
        ("chat", "input"),
        ("constraint.json_schema", "text.format"),
        ("stop.max_tokens", "max_output_tokens"),
        ("tools[1].parameters_json_schema", "tools[1].parameters"),
        ("tools[1].name", "tools[1].name"),
        ("tool_choice.name", "tool_choice.name"),
        ("tool_choice.mode", "tool_choice"),
        ("reasoning.effort", "reasoning.effort"),
        ("sampling.top_p", "top_p"),
        ("logprobs.top", "top_logprobs"),
        ("labels", "metadata"),
    ],
)
def test_the_router_s_fields_are_named_as_bodies_do(router: str, body: str) -> None:
    failure = Failure(400, f"{router}: is wrong", "INVALID_FIELD", router, is_router=True)
    error = json.loads(responses_failures.refusal(failure))["error"]
    assert (error["param"], error["message"]) == (body, f"{body}: is wrong")


def test_any_number_of_thoughts_may_be_of_one_turn() -> None:
    said = "some words " * 100
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": said}]}
    message = {"role": "assistant", "content": "hello"}
    began_s = thread_time()
    (made,) = requested(input=[*[thought] * 8000, message]).chat.messages
    assert thread_time() - began_s < 3.0
    assert (made.reasoning_content, made.content) == (said * 8000, "hello")
