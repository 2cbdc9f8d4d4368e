"""OpenAI's chat completions: a body to a request (pure); openai/chat_answer.py says the answer."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.openai.chat_answer import ChatStream, ChatWhole
from bramley.router.gateway.openai.objects import Told, refusal
from bramley.router.gateway.openai.options import (
    Effort,
    Int32,
    Options,
    constrain,
    constraints_of,
    put_effort,
    start,
)
from bramley.router.gateway.openai.tools import Choice, Function, Mode, put_tools


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was called; the arguments are JSON text."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier turn."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A turn."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "refusal": (),
        "audio": (),
        "function_call": (),
        "annotations": ([],),
    }

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None
    annotations: Any = None
    reasoning_content: str | None = None  # what DeepSeek's and vLLM's clients know


class ToolFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool."""

    type: Literal["function"]
    function: ToolFunction


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be called."""

    name: str


class ChosenTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named tool."""

    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named schema; it is always kept to, ``strict`` or not."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the content has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A body."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "audio": (),
        "function_call": (),
        "functions": (),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
        "store": (False,),
        "verbosity": ("medium",),
        "web_search_options": (),
        "include_reasoning": (True,),
    }

    messages: list[Message]
    max_completion_tokens: Int32 | None = None
    tools: list[Tool] | None = None
    tool_choice: Mode | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    safety_identifier: str | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    thinking_token_budget: Int32 | None = None
    include_reasoning: Any = None


def read(value: object, now: int) -> Asked:
    """Make a request of a body's plain values.

    Args:
        value: them.
        now: seconds since 1970.

    Returns:
        It, and what says its answer.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, ChatBody)
    request = start(body)
    _put_messages(request.chat, body)
    _put_tools(request, body)
    _put_limit(request.stop, body)
    _put_reasoning(request, body)
    names = constrain(request, (*constraints_of(body), *_format(body)))
    _put_logprobs(request, body)
    if body.safety_identifier and not body.user:
        request.fairness_key = body.safety_identifier
    told = Told(body.model, now, body.answers, tells_usage=body.tells_usage)
    return Asked([request], ChatStream(told) if body.streams else ChatWhole(told), names)


DIALECT = Dialect(read, refusal)


def _put_messages(chat: types_pb2.ChatInput, body: ChatBody) -> None:
    for place, message in enumerate(body.messages):
        _put_message(chat.messages.add(), message, f"messages[{place}]")
    if body.chat_template_kwargs:
        chat.template_kwargs.update(body.chat_template_kwargs)
    chat.continue_final_message = bool(body.continue_final_message)
    if body.add_generation_prompt is chat.continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt", "has to be the contrary of continue_final_message"
        )


def _put_message(made: types_pb2.ChatMessage, message: Message, path: str) -> None:
    for name, allowed in message.ONLY.items():
        value = getattr(message, name)
        if value is not None and value not in allowed:
            raise InvalidRequest(f"{path}.{name}", "is not supported")
    # To a template, who wrote the system's message is all the same.
    made.role = "system" if message.role == "developer" else message.role
    content, calls = message.content, message.tool_calls or ()
    if isinstance(content, str):
        made.content = content
    elif content is not None:
        made.parts.extend([types_pb2.ContentPart(text=part.text) for part in content])
    elif not calls:
        raise InvalidRequest(f"{path}.content", "is missing")
    for call in calls:
        made.tool_calls.add(
            id=call.id, name=call.function.name, arguments_json=call.function.arguments
        )
    made.tool_call_id = message.tool_call_id or ""
    made.name = message.name or ""
    made.reasoning_content = message.reasoning_content or ""


def _put_tools(request: generation_pb2.GenerateRequest, body: ChatBody) -> None:
    choice = body.tool_choice
    if body.parallel_tool_calls is not None:
        request.parallel_tool_calls = body.parallel_tool_calls
    functions = [
        Function(
            path=f"tools[{place}].function",
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            is_strict=bool(tool.function.strict),
        )
        for place, tool in enumerate(body.tools or ())
    ]
    is_named = isinstance(choice, ChosenTool)
    chosen = Choice(name=choice.function.name) if is_named else Choice(choice)
    put_tools(request, functions, chosen)


def _put_limit(stop: types_pb2.StopConditions, body: ChatBody) -> None:
    limit = body.max_completion_tokens
    if limit is None:
        return
    if body.max_tokens not in {None, limit}:
        raise InvalidRequest("max_tokens", "is not what max_completion_tokens says")
    stop.max_tokens = limit


def _put_reasoning(request: generation_pb2.GenerateRequest, body: ChatBody) -> None:
    put_effort(request, body.reasoning_effort)
    if body.thinking_token_budget is not None:
        request.reasoning.budget_tokens = body.thinking_token_budget


def _format(body: ChatBody) -> Iterator[tuple[str, str, object]]:
    asked = body.response_format
    if asked is None:
        return
    if (asked.type == "json_schema") != (asked.json_schema is not None):
        raise InvalidRequest("response_format.json_schema", "goes with the type json_schema")
    if asked.json_schema is not None:
        yield "response_format", "json_schema", asked.json_schema.schema
    elif asked.type == "json_object":
        yield "response_format", "json_object", True


def _put_logprobs(request: generation_pb2.GenerateRequest, body: ChatBody) -> None:
    if body.logprobs:
        request.logprobs.top = body.top_logprobs or 0
        request.logprobs.bytes = True
    elif body.top_logprobs:
        raise InvalidRequest("top_logprobs", "goes with logprobs")
