"""Conversations to token ids, through the model's own chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
from google.protobuf import json_format

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

# What the renderer itself takes: a caller who could set them would choose the template.
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def characters(request: generation_pb2.GenerateRequest) -> int:
    """Count what will be tokenized; what a template adds is little beside the bound."""
    messages = request.chat.messages
    return len(request.text) + sum(
        len(message.content) + sum(len(part.text) for part in message.parts) for message in messages
    )


def conversation(chat: types_pb2.ChatInput) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turn a conversation and its template's switches into what ``render`` takes.

    Returns:
        Messages and switches.

    Raises:
        InvalidRequest: a number that JSON does not know.
    """
    try:
        kwargs = json_format.MessageToDict(chat.template_kwargs)
    except (json_format.SerializeToJsonError, ValueError) as error:  # NaN or infinity
        raise InvalidRequest("chat.template_kwargs", str(error)) from error
    return [_message(message) for message in chat.messages], kwargs


def _message(message: types_pb2.ChatMessage) -> dict[str, Any]:
    """A chat message as templates expect it: content None where it was absent."""
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


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
) -> list[int]:
    """Render a conversation and tokenize it.

    Args:
        tokenizer: of the model that will answer.
        messages: dicts as templates know them: role, content (text, None, or text parts),
            tool_calls, tool_call_id, ...
        tools: function descriptions as templates know them.
        template_kwargs: the template's own switches, as in ``enable_thinking``.
        continue_final_message: leave the last message open instead of starting a new one.

    Returns:
        The prompt's ids; the template alone decides on special tokens.

    Raises:
        InvalidRequest: no template, no message, or the template refuses the conversation.
    """
    if not tokenizer.has_chat_template:
        raise InvalidRequest("chat", "this model has no chat template: send text instead")
    if continue_final_message and messages and messages[-1].get("role") != "assistant":
        problem = "needs a last message of the assistant to go on from"
        raise InvalidRequest("chat.continue_final_message", problem)
    if not messages:
        raise InvalidRequest("chat.messages", "at least one message is needed")
    switches = dict(template_kwargs or {})
    for name in sorted(_RESERVED & switches.keys()):
        raise InvalidRequest(f"chat.template_kwargs.{name}", "is not the caller's to set")
    try:
        ids = tokenizer.wrapper.apply_chat_template(
            [_readable(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
            tokenize=True,
            **switches,
        )
    except _TEMPLATE_FAULTS as error:
        problem = f"the model's chat template refuses them: {error}"
        raise InvalidRequest("chat.messages", problem) from error
    return list(ids)


# A template is a program of the model's: whatever it trips over lies in what it was given.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _readable(message: Message) -> dict[str, Any]:
    # Templates of text models add content to strings, and walk through arguments.
    plain = {**message, "content": _text(message.get("content"))}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return plain


def _text(content: object) -> object:
    if content is None:
        return ""
    if isinstance(content, list):
        parts = cast("list[object]", content)
        if all(isinstance(part, dict) and "text" in part for part in parts):
            return "".join(cast("dict[str, str]", part)["text"] for part in parts)
        raise InvalidRequest("chat.messages", "only text can be part of a message's content")
    return content


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(cast("Mapping[str, Any]", call.get("function") or {}))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except ValueError:
            return {**call}
        if isinstance(parsed, dict):
            return {**call, "function": {**function, "arguments": parsed}}
    return {**call}
