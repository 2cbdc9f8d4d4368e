"""Messages of the wire to what templates know: turns, tools and switches."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from google.protobuf import json_format

from bramley.common.errors import InvalidRequest
from bramley.common.together import shows_tools
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.reading.events import ToolSpec
from bramley.worker.text.template import THINKING_SWITCHES, Message, Template

# What the renderer itself takes: a caller who could set them would choose the template.
RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

_NAME_SHOWN_MAX = 64  # characters of a caller's own name


def messages_of(chat: types_pb2.ChatInput) -> Sequence[Message]:
    """Tell the turns of a conversation.

    Returns:
        A dict of each.

    Raises:
        InvalidRequest: a part that is no text.
    """
    return [_message(message, f"chat.messages[{n}]") for n, message in enumerate(chat.messages)]


def _message(message: types_pb2.ChatMessage, path: str) -> Message:
    """One turn; its content is None where it was absent."""
    for place, part in enumerate(message.parts):
        if part.WhichOneof("part") != "text":
            raise InvalidRequest(f"{path}.parts[{place}]", "is no text, and nothing else is read")
    parts = [part.text for part in message.parts]
    content = "".join(parts) if parts else message.content
    plain: dict[str, Any] = {
        "role": message.role,
        "content": content if parts or message.HasField("content") else None,
    }
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for call in message.tool_calls
        ]
    for name in ("tool_call_id", "name", "reasoning_content"):
        if value := getattr(message, name):
            plain[name] = value
    return plain


def tools_of(request: generation_pb2.GenerateRequest) -> Sequence[ToolSpec]:
    """Tell the tools that the model is to know of.

    Returns:
        None of them if it may call none.

    Raises:
        InvalidRequest: the schema of one's parameters is no JSON object.
    """
    if not shows_tools(request):
        return ()
    return [
        ToolSpec(tool.name, _schema(tool.parameters_json_schema, n), tool.description)
        for n, tool in enumerate(request.tools)
    ]


def _schema(text: str, place: int) -> Mapping[str, Any]:
    """Parse a schema that can be written again; an empty one is of no parameters."""
    path = f"tools[{place}].parameters_json_schema"
    if not text:
        return {"type": "object", "properties": {}}
    try:
        schema: object = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(path, f"is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidRequest(path, "is no JSON object")
    known = cast("dict[str, Any]", schema)
    if known.get("type", "object") != "object":
        raise InvalidRequest(path, "is not of an object, and arguments are one")
    return known


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is none of its numbers")


def as_object(arguments: str) -> object:
    """Parse a call's arguments; what is no JSON object, or could not be sent, stays text."""
    try:
        parsed: object = json.loads(arguments or "{}", parse_constant=_refuse_constant)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except (RecursionError, ValueError):
        return arguments
    return cast("object", parsed) if isinstance(parsed, dict) else arguments


def switches_of(
    request: generation_pb2.GenerateRequest, template: Template, *, reasons: bool
) -> Mapping[str, Any]:
    """Join the template's switches with what is asked of the reasoning.

    Args:
        request: to be told.
        template: of the model.
        reasons: whether the model has a reasoning format.

    Returns:
        The switches by their names.

    Raises:
        InvalidRequest: one is not the caller's to set, or not there, or is set to something else.
    """
    try:
        switches: dict[str, Any] = json_format.MessageToDict(request.chat.template_kwargs)
    except (json_format.SerializeToJsonError, ValueError) as error:  # NaN or infinity
        raise InvalidRequest("chat.template_kwargs", str(error)) from error
    for name in sorted(RESERVED & switches.keys()):
        raise InvalidRequest(f"chat.template_kwargs.{name}", "is not the caller's to set")
    for name, value in switches.items():
        is_so_anyway = not reasons and name in THINKING_SWITCHES and value is False
        if not is_so_anyway and not template.reads(name, with_tools=shows_tools(request)):
            problem = "this model's chat template does not read it"
            raise InvalidRequest(f"chat.template_kwargs.{name[:_NAME_SHOWN_MAX]}", problem)
    reasoning = request.reasoning
    if reasoning.HasField("enabled"):
        name = template.thinking_switch
        if name is not None:
            _switch(switches, name, "reasoning.enabled", reasoning.enabled)
        elif reasons and not reasoning.enabled:
            problem = "this model's chat template cannot turn reasoning off"
            raise InvalidRequest("reasoning.enabled", problem)
    if reasoning.effort:
        if not template.reads("reasoning_effort"):
            problem = "this model's chat template knows no reasoning_effort"
            raise InvalidRequest("reasoning.effort", problem)
        _switch(switches, "reasoning_effort", "reasoning.effort", reasoning.effort)
    return switches


def is_reasoning_off(request: generation_pb2.GenerateRequest, template: Template) -> bool:
    """Tell whether a request wants no reasoning, in whatever way it says so."""
    reasoning = request.reasoning
    if reasoning.HasField("enabled") and not reasoning.enabled:
        return True
    if reasoning.effort == "none":
        return True
    if reasoning.HasField("budget_tokens") and not reasoning.budget_tokens:
        return True
    switch, given = template.thinking_switch, request.chat.template_kwargs.fields
    if switch is None or switch not in given:
        return False
    return given[switch].WhichOneof("kind") == "bool_value" and not given[switch].bool_value


def _switch(switches: dict[str, Any], name: str, path: str, value: object) -> None:
    if switches.setdefault(name, value) != value:
        raise InvalidRequest(path, f"chat.template_kwargs.{name} says something else")
