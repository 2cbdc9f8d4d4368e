"""What a generation asks for goes together, or is refused by the path of one of its fields."""

from typing import Any

import pytest

from bramley.common import together
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.types_pb2 import Constraint, ReasoningOptions, Tool, ToolChoice

CHAT = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="hi")])
IDS = types_pb2.TokenIds(ids=[1])
F, G = Tool(name="f"), Tool(name="g", description="G")
NONE, AUTO, REQUIRED = (
    ToolChoice(mode=mode)
    for mode in (ToolChoice.MODE_NONE, ToolChoice.MODE_AUTO, ToolChoice.MODE_REQUIRED)
)
NAMED = ToolChoice(name="f")
DIGIT = Constraint(regex="[0-9]")
HALF = Tool(name="half", description="x" * (together.TOOLS_CHARACTERS_MAX // 2))


def chat(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(chat=CHAT, **fields)


def text(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text="x", **fields)


def choice(*values: str) -> Constraint:
    return Constraint(choice=Constraint.Choice(values=values))


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("adapter", text(adapter="a")),
        ("speculation", text(speculation=types_pb2.SpeculationOptions(disabled=True))),
        ("tools[1].name", chat(tools=[F, Tool()])),
        ("tools[2].name", chat(tools=[F, G, F])),
        ("tools", chat(tools=[HALF, Tool(name="x", parameters_json_schema=HALF.description), G])),
        ("tools", text(tools=[F])),
        ("tools", text(tools=[F], tool_choice=NONE)),
        ("tools", generation_pb2.GenerateRequest(token_ids=IDS, tools=[F])),
        ("tool_choice.mode", chat(tool_choice=REQUIRED)),
        ("tool_choice.name", chat(tool_choice=NAMED)),
        ("tool_choice.name", chat(tools=[G], tool_choice=NAMED)),
        ("tool_choice.name", chat(tools=[F], tool_choice=ToolChoice(name=""))),
        ("reasoning.enabled", text(reasoning=ReasoningOptions(enabled=False))),
        ("reasoning.budget_tokens", text(reasoning=ReasoningOptions(budget_tokens=0))),
        ("reasoning.effort", text(reasoning=ReasoningOptions(effort="low"))),
        ("constraint", text(constraint=Constraint())),
        ("constraint", chat(tools=[F], tool_choice=REQUIRED, constraint=DIGIT)),
        ("constraint", chat(tools=[F], tool_choice=NAMED, constraint=DIGIT)),
        ("constraint.json_object", text(constraint=Constraint(json_object=False))),
        ("constraint.choice.values", text(constraint=choice())),
        ("constraint.choice.values[2]", text(constraint=choice("a", "b", "a"))),
    ],
)
def test_what_does_not_go_together_is_refused(
    field: str, request_: generation_pb2.GenerateRequest
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        together.check_together(request_)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("request_", "shows", "must"),
    [
        (text(), False, False),
        (text(tool_choice=NONE), False, False),
        (text(tool_choice=AUTO, reasoning=ReasoningOptions()), False, False),
        (chat(tools=[F, G]), True, False),
        (chat(tools=[F, G], parallel_tool_calls=False, constraint=DIGIT), True, False),
        (chat(tools=[F], tool_choice=ToolChoice()), True, False),
        (chat(tools=[F], tool_choice=NONE, constraint=DIGIT), False, False),
        (chat(tools=[F], tool_choice=REQUIRED), True, True),
        (chat(tools=[G, F], tool_choice=NAMED), True, True),
        (text(constraint=choice("a", "b")), False, False),
        (text(constraint=Constraint(json_object=True)), False, False),
        (
            chat(reasoning=ReasoningOptions(enabled=True, budget_tokens=5, effort="low")),
            False,
            False,
        ),
    ],
)
def test_what_goes_together_says_what_is_shown_and_what_must_be_called(
    request_: generation_pb2.GenerateRequest, shows: bool, must: bool
) -> None:
    together.check_together(request_)
    assert (together.shows_tools(request_), together.must_call(request_)) == (shows, must)
