"""Conversations, tools, constraints and reasoning become messages, or are refused by field."""

import json
from typing import Any

import pytest
from google.protobuf import json_format

from bramley.client.requests import Turn, generate_request
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2

HI: list[Turn] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}


def built(messages: Any = HI, **options: Any) -> generation_pb2.GenerateRequest:
    asked: Any = {"messages": messages, **options}
    return generate_request("m", None, asked)


def test_turns_keep_what_they_have() -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}], "name": "me"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": '{"a":  1}'}},
                {"type": "function", "function": {"name": "g", "arguments": {"a": "é"}}},
            ],
        },
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]
    system, user, reply, tool = built(messages).chat.messages
    assert (system.HasField("content"), system.content) == (True, "")
    assert ([part.text for part in user.parts], user.name) == (["a", "b"], "me")
    assert not user.HasField("content")
    assert (reply.HasField("content"), reply.reasoning_content) == (False, "hm")
    calls = [(call.id, call.name, call.arguments_json) for call in reply.tool_calls]
    assert calls == [("1", "f", '{"a":  1}'), ("", "g", '{"a": "é"}')]
    assert (tool.content, tool.tool_call_id) == ("done", "1")


def test_tools_are_taken_in_either_form() -> None:
    own = {"name": "f", "description": "does", "parameters": SCHEMA}
    for tool in (own, {"type": "function", "function": own}):
        (made,) = built(tools=[tool]).tools
        assert (made.name, made.description) == ("f", "does")
        assert json.loads(made.parameters_json_schema) == SCHEMA
    (bare,) = built(tools=[{"name": "f"}]).tools
    assert bare.parameters_json_schema == ""


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("none", types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_NONE)),
        ("auto", types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_AUTO)),
        ("required", types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_REQUIRED)),
        ("f", types_pb2.ToolChoice(name="f")),
    ],
)
def test_a_choice_is_a_mode_or_a_tool_s_name(choice: str, made: types_pb2.ToolChoice) -> None:
    assert built(tool_choice=choice).tool_choice == made


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({"json_schema": '{"type":  1}'}, {"json_schema": '{"type":  1}'}),
        ({"json_schema": {"a": "é"}}, {"json_schema": '{"a": "é"}'}),
        ({"json_schema": {}}, {"json_schema": "{}"}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "[0-9]+", "json_object": False}, {"regex": "[0-9]+"}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"choice": ["a", "b"]}, {"choice": types_pb2.Constraint.Choice(values=["a", "b"])}),
        ({"choice": []}, {"choice": types_pb2.Constraint.Choice()}),
        ({"regex": ""}, {"regex": ""}),
    ],
)
def test_a_constraint_is_what_was_given_empty_or_not(options: Any, made: Any) -> None:
    assert built(**options).constraint == types_pb2.Constraint(**made)


def test_nothing_is_asked_of_what_was_not_given() -> None:
    request = built(tool_choice="", reasoning=None, reasoning_budget=None, reasoning_effort="")
    for name in ("constraint", "tool_choice", "reasoning", "parallel_tool_calls"):
        assert not request.HasField(name)
    assert not request.chat.HasField("template_kwargs")


def test_switches_and_reasoning_are_told() -> None:
    request = built(
        template_kwargs={"a": {"b": [1, None]}},
        continue_final_message=True,
        reasoning=False,
        reasoning_budget=0,
        reasoning_effort="low",
        parallel_tool_calls=False,
    )
    switches = json_format.MessageToDict(request.chat.template_kwargs)
    assert switches == {"a": {"b": [1, None]}}
    assert request.chat.continue_final_message
    reasoning = types_pb2.ReasoningOptions(enabled=False, budget_tokens=0, effort="low")
    assert request.reasoning == reasoning
    assert request.HasField("parallel_tool_calls")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"messages": "hi"}, "chat.messages: 'hi' is no list"),
        ({"messages": ["hi"]}, "chat.messages[0]: 'hi' is no mapping"),
        ({"messages": [{"role": "user", "content": 5}]}, "chat.messages[0].content: 5 is no list"),
        (
            {"messages": [{"role": "user", "content": ["a"]}]},
            "chat.messages[0].content[0]: 'a' is no mapping",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "chat.messages[0].content[0]: lacks 'text'",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]},
            "chat.messages[0].tool_calls[0].function: 'f' is no mapping",
        ),
        ({"tools": {"name": "f"}}, "tools: {'name': 'f'} is no list"),
        ({"tools": [3]}, "tools[0]: 3 is no mapping"),
        ({"seed": -1}, "sampling.seed: -1 is out of its range"),
    ],
)
def test_what_is_of_another_shape_is_told_in_plain_words(given: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        built(**given)
    assert str(caught.value) == told


UNSENDABLE: list[tuple[Any, str]] = [
    ({"tools": [{"description": "x"}]}, "tools[0]"),
    ({"tools": [{"name": "f"}, 3]}, "tools[1]"),
    ({"tools": [{"name": "f", "parameters": {1j}}]}, "tools[0]"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"json_schema": {"a": {1j}}}, "constraint.json_schema"),
    ({"regex": 3}, "constraint.regex"),
    ({"choice": [3]}, "constraint.choice"),
    ({"regex": "a", "json_object": True}, "constraint"),
    ({"reasoning": "on"}, "reasoning.enabled"),
    ({"reasoning_budget": 2**31}, "reasoning.budget_tokens"),
    ({"reasoning_effort": 3}, "reasoning.effort"),
    ({"template_kwargs": {"a": {1j}}}, "chat.template_kwargs"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "chat.messages[0].content[0]",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "chat.messages[0]"),
]


@pytest.mark.parametrize(("options", "field"), UNSENDABLE)
def test_what_cannot_be_sent_is_refused_by_its_field(options: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        built(**options)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["template_kwargs", "continue_final_message"])
def test_what_is_of_messages_is_refused_without_them(name: Any) -> None:
    options: Any = {name: {"a": 1}}
    with pytest.raises(InvalidRequest) as refused:
        generate_request("m", "hi", options)
    assert refused.value.field == f"chat.{name}"
