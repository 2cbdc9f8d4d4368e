"""A body of Anthropic's dialect says the same as the request that is made of it."""

import json
from time import thread_time
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.anthropic import count_tokens, messages
from bramley.router.gateway.anthropic.objects import renamed
from bramley.router.gateway.bodies import as_json

HELLO: Any = [{"role": "user", "content": "hello"}]
LEAST: Any = {"model": "m", "max_tokens": 2000, "messages": HELLO}
TOOL: Any = {"name": "f", "input_schema": {"type": "object", "b": 1, "a": 2}}
CALL: Any = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}}
SHORT = {"type": "ephemeral", "ttl": "1h"}
Turn = types_pb2.ChatMessage


def asked(**fields: Any) -> generation_pb2.GenerateRequest:
    (request,) = messages.read({**LEAST, **fields}, 1).requests
    return request


def turns(*made: Any, **fields: Any) -> list[Turn]:
    return list(asked(messages=list(made), **fields).chat.messages)


def text(said: str, **fields: Any) -> Any:
    return {"type": "text", "text": said, **fields}


def result(content: Any, **fields: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    return caught.value.field


def test_texts_of_a_turn_are_one_text() -> None:
    assert turns(user(text("a", cache_control=SHORT), text(" b", citations=None))) == [
        Turn(role="user", content="a b")
    ]
    assert turns(user()) == [Turn(role="user", content="")]


@pytest.mark.parametrize("system", ["be brief", [text("be "), text("brief", cache_control=SHORT)]])
def test_the_system_s_text_is_the_first_turn(system: Any) -> None:
    assert turns(*HELLO, system=system) == [
        Turn(role="system", content="be brief"),
        Turn(role="user", content="hello"),
    ]
    assert turns(*HELLO, system="") == turns(*HELLO, system=[]) == turns(*HELLO)


def test_a_system_s_turn_may_stand_anywhere() -> None:
    later = {"role": "system", "content": [text("be brief")]}
    assert [turn.role for turn in turns(*HELLO, later, *HELLO)] == ["user", "system", "user"]


def test_turns_of_one_role_are_one_turn() -> None:
    assert turns(*HELLO, user(), *HELLO) == [Turn(role="user", content="hello\n\nhello")]
    thought = {"type": "thinking", "thinking": "why", "signature": "s"}
    made = turns(
        *HELLO, assistant(thought, text("a")), assistant(text("b"), CALL), user(result(""))
    )
    assert (made[1].content, made[1].reasoning_content) == ("a\n\nb", "why")
    assert [call.id for call in made[1].tool_calls] == ["t1"]


def test_calls_and_their_results_are_turns_as_templates_know_them() -> None:
    made = turns(
        *HELLO,
        assistant(CALL),
        user(result([text("4"), text("2")]), result("no", is_error=True), text("so?")),
        assistant({"type": "redacted_thinking", "data": "x"}, text("42")),
        *HELLO,
    )
    assert [turn.role for turn in made] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    call = types_pb2.ToolCall(id="t1", name="f", arguments_json='{"b":1,"a":"é"}')
    assert (list(made[1].tool_calls), made[1].HasField("content")) == ([call], False)
    assert made[2] == Turn(role="tool", content="42", tool_call_id="t1", name="f")
    assert made[3].content == "Error: no"
    assert made[4].content == "so?"
    assert (made[5].content, made[5].reasoning_content) == ("42", "")


def test_a_result_without_content_is_an_empty_text() -> None:
    bare = {"type": "tool_result", "tool_use_id": "gone"}
    (turn,) = turns(user(bare))
    assert turn == Turn(role="tool", content="", tool_call_id="gone")
    assert turn.HasField("content")


def test_an_answer_goes_on_from_a_last_turn_of_the_assistant() -> None:
    assert asked(messages=[*HELLO, assistant(text("It is"))]).chat.continue_final_message
    assert not asked().chat.continue_final_message
    assert refused(messages=[*HELLO, assistant(text("x"), CALL)]) == "messages[1]"
    assert refused(messages=[]) == "messages"


def test_each_field_has_its_place() -> None:
    request = asked(
        stop_sequences=["x", "y"],
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        metadata={"user_id": "ann"},
        stream=True,
        cache_control={"type": "ephemeral"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"b": 1}}},
    )
    assert request == generation_pb2.GenerateRequest(
        model="m",
        chat=types_pb2.ChatInput(messages=[Turn(role="user", content="hello")]),
        stop=types_pb2.StopConditions(max_tokens=2000, strings=["x", "y"]),
        sampling=types_pb2.SamplingParams(temperature=0.5, top_p=0.25, top_k=7),
        fairness_key="ann",
        stream=types_pb2.StreamOptions(omit_token_ids=True),
        reasoning=types_pb2.ReasoningOptions(effort="low"),
        constraint=types_pb2.Constraint(json_schema='{"b":1}'),
    )


def test_null_is_the_same_as_absent() -> None:
    nulls = dict.fromkeys(messages.MessagesBody.__struct_fields__)
    assert messages.read({**nulls, **LEAST}, 1).requests == messages.read(LEAST, 1).requests


@pytest.mark.parametrize(
    ("tier", "priority"),
    [
        ("auto", types_pb2.PRIORITY_CLASS_UNSPECIFIED),
        ("standard_only", types_pb2.PRIORITY_CLASS_UNSPECIFIED),
        ("flex", types_pb2.PRIORITY_CLASS_BULK),
        ("priority", types_pb2.PRIORITY_CLASS_INTERACTIVE),
    ],
)
def test_a_service_tier_is_a_class(tier: str, priority: Any) -> None:
    assert asked(service_tier=tier).priority == priority


def test_tools_are_functions() -> None:
    full: Any = {
        **TOOL,
        "type": "custom",
        "description": "does",
        "cache_control": SHORT,
        "defer_loading": False,
        "allowed_callers": ["direct"],
        "input_examples": [],
        "eager_input_streaming": True,
    }
    (tool,) = asked(tools=[full]).tools
    assert tool == types_pb2.Tool(
        name="f", description="does", parameters_json_schema='{"type":"object","b":1,"a":2}'
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_AUTO)),
        ({"type": "any"}, types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_REQUIRED)),
        ({"type": "none"}, types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_NONE)),
        ({"type": "tool", "name": "f"}, types_pb2.ToolChoice(name="f")),
    ],
)
def test_what_is_to_be_called(choice: Any, expected: types_pb2.ToolChoice) -> None:
    request = asked(tools=[TOOL], tool_choice=choice)
    assert request.tool_choice == expected
    assert not request.HasField("parallel_tool_calls")
    alone = asked(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert (alone.HasField("parallel_tool_calls"), alone.parallel_tool_calls) == (True, False)
    many = asked(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": False})
    assert many.parallel_tool_calls
    strict = [{**TOOL, "strict": True}]
    if choice["type"] == "auto":
        assert refused(tools=strict, tool_choice=choice) == "tools[0].strict"
    else:
        assert asked(tools=strict, tool_choice=choice) == request


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (
            {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
            types_pb2.ReasoningOptions(enabled=True, budget_tokens=1024),
        ),
        ({"type": "disabled"}, types_pb2.ReasoningOptions(enabled=False)),
        ({"type": "adaptive"}, types_pb2.ReasoningOptions()),
    ],
)
def test_what_is_asked_of_thinking(thinking: Any, expected: types_pb2.ReasoningOptions) -> None:
    assert asked(thinking=thinking).reasoning == expected


UNSERVED: list[tuple[Any, str]] = [
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
    ({"messages": [user({"type": "image", "source": {}})]}, "messages[0].content[0].type"),
    ({"messages": [user(text(""), {"type": "document"})]}, "messages[0].content[1].type"),
    ({"messages": [user(CALL)]}, "messages[0].content[0].type"),
    ({"messages": [user(text("", citations=[{}]))]}, "messages[0].content[0].citations"),
    ({"messages": [assistant(result(""))]}, "messages[0].content[0].type"),
    (
        {"messages": [user(result([{"type": "image"}]))]},
        "messages[0].content[0].content[0].type",
    ),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
    ({"cache_control": {"type": "lasting"}}, "cache_control.type"),
    ({"service_tier": "batch"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
    ({"metadata": {"team": "x"}}, "metadata.team"),
    ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type"),
    ({"max_tokens": None}, "max_tokens"),
    ({"wish": 1}, "wish"),
]


@pytest.mark.parametrize(("fields", "field"), UNSERVED)
def test_what_is_not_served_is_refused_by_name(fields: Any, field: str) -> None:
    assert refused(**fields) == field


def test_the_name_of_a_kind_that_is_not_served_is_told() -> None:
    with pytest.raises(InvalidRequest, match="image"):
        turns(user({"type": "image", "source": {}}))


def test_what_is_counted_is_the_prompt_that_is_generated_from() -> None:
    fields: Any = {
        "system": "be brief",
        "tools": [TOOL],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"},
    }
    body = {"model": "m", "messages": [*HELLO, assistant(text("It is"))], **fields}
    counted = count_tokens.read(body)
    generated = asked(messages=body["messages"], **fields)
    for name in ("model", "chat", "tools", "tool_choice", "reasoning"):
        assert getattr(counted, name) == getattr(generated, name)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        count_tokens.read({**body, "max_tokens": 1})


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("chat.messages[3].content", "messages"),
        ("chat", "messages"),
        ("sampling.top_k", "top_k"),
        ("stop.strings[2]", "stop_sequences[2]"),
        ("stop.max_tokens", "max_tokens"),
        ("tools[4].parameters_json_schema", "tools[4].input_schema"),
        ("tools[4].name", "tools[4].name"),
        ("tool_choice.mode", "tool_choice"),
        ("tool_choice.name", "tool_choice.name"),
        ("reasoning.enabled", "thinking"),
        ("reasoning.budget_tokens", "thinking.budget_tokens"),
        ("reasoning.effort", "output_config.effort"),
        ("constraint.json_schema", "output_config.format"),
        ("fairness_key", "metadata.user_id"),
        ("priority", "service_tier"),
        ("model", "model"),
    ],
)
def test_fields_are_named_as_the_body_names_them(named: str, expected: str) -> None:
    assert renamed(named) == expected


def test_an_input_comes_back_as_it_went() -> None:
    (turn,) = turns(*HELLO, assistant(CALL), user(result("")))[1:2]
    assert json.loads(turn.tool_calls[0].arguments_json) == CALL["input"]
    assert turn.tool_calls[0].arguments_json == as_json(CALL["input"])


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_any_number_of_messages_may_be_one_turn(role: str) -> None:
    said = "some words " * 100
    began_s = thread_time()
    blocks = [text(said)]
    if role == "assistant":
        blocks.append({"type": "thinking", "thinking": said, "signature": "s"})
    (made,) = turns(*[{"role": role, "content": blocks}] * 8000)
    assert thread_time() - began_s < 3.0
    assert made.content == "\n\n".join([said] * 8000)
    assert made.reasoning_content == (made.content if role == "assistant" else "")
