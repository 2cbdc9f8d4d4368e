"""Conversations, tools, constraints and reasoning: a caller's own values to messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from bramley.client.fields import field, items, mapping
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2

_MODES = {
    "none": types_pb2.ToolChoice.MODE_NONE,
    "auto": types_pb2.ToolChoice.MODE_AUTO,
    "required": types_pb2.ToolChoice.MODE_REQUIRED,
}
_KINDS = ("json_schema", "json_object", "regex", "grammar", "choice")


class Function(TypedDict):
    """A function's name and arguments: JSON text, or what becomes such."""

    name: str
    arguments: str | Mapping[str, Any]


class Call(TypedDict):
    """A call of a tool, as OpenAI's clients write it."""

    id: NotRequired[str]
    type: NotRequired[str]
    function: Function


class Part(TypedDict):
    """A piece of a message; only text is understood."""

    type: NotRequired[str]
    text: str


class Message(TypedDict):
    """One turn of a conversation that is text and nothing else."""

    role: str
    content: str


class Turn(TypedDict):
    """One turn of a conversation.

    Attributes:
        content: None, or left out, in a turn that only calls tools; else it must be there.
        tool_calls: that an assistant's turn made.
        tool_call_id: of the call that a "tool" message answers.
        reasoning_content: of an assistant's turn; the model's template keeps it or leaves it out.
    """

    role: str
    content: NotRequired[str | Sequence[Part] | None]
    tool_calls: NotRequired[Sequence[Call]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    reasoning_content: NotRequired[str]


class Tool(TypedDict):
    """A function that the model may call.

    Attributes:
        parameters: JSON Schema of an object, or its text; left out for no parameters.
    """

    name: str
    description: NotRequired[str]
    parameters: NotRequired[Mapping[str, Any] | str]


class PromptOptions(TypedDict, total=False):
    """What goes with a conversation into its prompt.

    Attributes:
        template_kwargs: switches of the model's own chat template.
        continue_final_message: the answer goes on from the last message, an assistant's.
        tools: that the model may call; OpenAI's form, with a "function" within, is read too.
        tool_choice: "none", "auto", "required", or the name of the tool to be called.
        reasoning: whether to reason before the answer.
        reasoning_effort: as the model's template knows it, as in "low".
    """

    template_kwargs: Mapping[str, Any]
    continue_final_message: bool
    tools: Sequence[Tool | Mapping[str, Any]]
    tool_choice: str
    reasoning: bool | None
    reasoning_effort: str


class TurnOptions(PromptOptions, total=False):
    """What goes with a conversation, and what the answer has to be.

    Attributes:
        parallel_tool_calls: whether one answer may call several.
        json_schema: that the content follows; an object, or its text.
        json_object: the content is any JSON object.
        regex: that the content matches.
        grammar: of the content, in Lark syntax.
        choice: texts of which the content is one.
        reasoning_budget: tokens of reasoning at most.
    """

    parallel_tool_calls: bool | None
    json_schema: Mapping[str, Any] | str
    json_object: bool
    regex: str
    grammar: str
    choice: Sequence[str]
    reasoning_budget: int | None


def chat_of(messages: Sequence[Message | Turn], options: PromptOptions) -> types_pb2.ChatInput:
    """Build the conversation.

    Returns:
        The message.

    Raises:
        InvalidRequest: a value that its field cannot hold.
    """
    chat = types_pb2.ChatInput()
    for position, message in enumerate(items(messages, "chat.messages")):
        path = f"chat.messages[{position}]"
        with field(path):
            _put_turn(chat.messages.add(), cast("Turn", mapping(message, path)), path)
    with field("chat.template_kwargs"):
        chat.template_kwargs.update(options.get("template_kwargs", {}))
    chat.continue_final_message = options.get("continue_final_message", False)
    return chat


def _put_turn(made: types_pb2.ChatMessage, turn: Turn, path: str) -> None:
    made.role = turn["role"]
    calls = turn.get("tool_calls", ())
    if not calls and "content" not in turn:
        raise KeyError("content")
    content = turn.get("content")
    if isinstance(content, str):
        made.content = content
    elif content is not None:
        at = f"{path}.content"
        for place, part in enumerate(items(content, at)):
            with field(f"{at}[{place}]"):
                made.parts.add(text=mapping(part, f"{at}[{place}]")["text"])
    for place, call in enumerate(items(calls or (), f"{path}.tool_calls")):
        at = f"{path}.tool_calls[{place}]"
        function = mapping(mapping(call, at)["function"], f"{at}.function")
        made.tool_calls.add(
            id=call.get("id", ""),
            name=function["name"],
            arguments_json=_as_json(function.get("arguments", "")),
        )
    made.tool_call_id = turn.get("tool_call_id", "")
    made.name = turn.get("name", "")
    made.reasoning_content = turn.get("reasoning_content", "")


def put_turn_options(request: generation_pb2.GenerateRequest, options: TurnOptions) -> None:
    """Set what is asked of tools, of the content and of reasoning.

    Raises:
        InvalidRequest: a value that its field cannot hold, or that needs a conversation.
    """
    put_prompt_options(request, options)
    if (many := options.get("parallel_tool_calls")) is not None:
        with field("parallel_tool_calls"):
            request.parallel_tool_calls = many
    if (budget := options.get("reasoning_budget")) is not None:
        with field("reasoning.budget_tokens"):
            request.reasoning.budget_tokens = budget
    _put_constraint(request, options)


def put_prompt_options(
    request: generation_pb2.GenerateRequest
    | router_pb2.TokenizeRequest
    | router_pb2.ExplainCacheRequest,
    options: PromptOptions,
) -> None:
    """Set what a prompt is made of beside its conversation.

    Raises:
        InvalidRequest: a value that its field cannot hold, or that needs a conversation.
    """
    if request.WhichOneof("input") != "chat":
        for name in ("template_kwargs", "continue_final_message"):
            if options.get(name):
                raise InvalidRequest(f"chat.{name}", "is of messages, and there are none")
    for position, tool in enumerate(items(options.get("tools", ()), "tools")):
        path = f"tools[{position}]"
        with field(path):
            request.tools.append(_tool(mapping(tool, path), path))
    with field("tool_choice"):
        if choice := options.get("tool_choice"):
            if choice in _MODES:
                request.tool_choice.mode = _MODES[choice]
            else:
                request.tool_choice.name = choice
    if (enabled := options.get("reasoning")) is not None:
        with field("reasoning.enabled"):
            request.reasoning.enabled = enabled
    if effort := options.get("reasoning_effort"):
        with field("reasoning.effort"):
            request.reasoning.effort = effort


def _tool(tool: Mapping[str, Any], path: str) -> types_pb2.Tool:
    inner = mapping(tool.get("function") or tool, f"{path}.function")
    return types_pb2.Tool(
        name=inner["name"],
        description=inner.get("description", ""),
        parameters_json_schema=_as_json(inner.get("parameters", "")),
    )


def _put_constraint(request: generation_pb2.GenerateRequest, options: TurnOptions) -> None:
    given = cast("Mapping[str, object]", options)
    kinds = [kind for kind in _KINDS if given.get(kind, False) is not False]
    if len(kinds) > 1:
        raise InvalidRequest("constraint", f"{' and '.join(kinds)}: give one of them")
    for kind in kinds:
        with field(f"constraint.{kind}"):
            _constrain(request.constraint, kind, options)


def _constrain(constraint: types_pb2.Constraint, kind: str, options: TurnOptions) -> None:
    match kind:
        case "json_schema":
            constraint.json_schema = _as_json(options.get("json_schema", ""))
        case "choice":
            constraint.choice.values.extend(options.get("choice", ()))
            constraint.choice.SetInParent()
        case _:
            setattr(constraint, kind, options.get(kind))


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
