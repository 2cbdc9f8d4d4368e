"""Anthropic's messages: a body to a request (pure); messages_answer.py says the answer."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.anthropic.messages_answer import MessageStream, MessageWhole, Told
from bramley.router.gateway.anthropic.objects import refusal
from bramley.router.gateway.anthropic.turns import CacheControl, Message, Text, put_turns
from bramley.router.gateway.bodies import as_json, convert
from bramley.router.gateway.dialect import Asked, Dialect

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Budget = Annotated[int, msgspec.Meta(ge=1024, le=2**31 - 1)]
_Display = Literal["summarized"]
_Only = ClassVar[Mapping[str, tuple[object, ...]]]

_CLASSES: Final = {
    "flex": types_pb2.PRIORITY_CLASS_BULK,
    "priority": types_pb2.PRIORITY_CLASS_INTERACTIVE,
}
_MODES: Final = {
    "auto": types_pb2.ToolChoice.MODE_AUTO,
    "any": types_pb2.ToolChoice.MODE_REQUIRED,
    "none": types_pb2.ToolChoice.MODE_NONE,
}
_SAMPLING: Final = ("temperature", "top_p", "top_k")


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    ONLY: _Only = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": ([],),
    }

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: CacheControl | None = None
    allowed_callers: Any = None
    defer_loading: Any = None
    input_examples: Any = None


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Enabled(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"
):
    """Reason, within a budget."""

    budget_tokens: _Budget
    display: _Display | None = None


class Adaptive(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="adaptive"
):
    """Reason as the model sees fit."""

    display: _Display | None = None


class Disabled(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"
):
    """Do not reason."""


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the content has to be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks."""

    user_id: str | None = None


class Previous(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the prompt is to be compared with; it is compared with nothing."""

    previous_message_id: str | None = None


class PromptBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that decide the prompt: all that its tokens are counted by.

    Attributes:
        ONLY: fields that are served with these values alone, which change nothing.
    """

    ONLY: _Only = {
        "context_management": (
            {"edits": []},
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    model: str
    messages: list[Message]
    system: str | list[Text] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Enabled | Adaptive | Disabled | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None


class MessagesBody(PromptBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A body."""

    ONLY: _Only = {**PromptBody.ONLY, "container": (), "inference_geo": ()}

    max_tokens: Int32
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    metadata: Metadata | None = None
    stream: bool | None = None
    service_tier: Literal["auto", "standard_only", "flex", "priority"] | None = None
    container: Any = None
    diagnostics: Previous | None = None
    inference_geo: Any = None


def read(value: object, now: int) -> Asked:
    """Make a request of a body's plain values.

    Args:
        value: them.
        now: seconds since 1970; nothing of an answer depends on it.

    Returns:
        It, and what says its answer.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, MessagesBody)
    request = prompt_of(body)
    request.stream.omit_token_ids = True  # what is told are texts: ids are for nobody
    request.stop.max_tokens = body.max_tokens
    request.stop.strings.extend(body.stop_sequences or ())
    if isinstance(body.thinking, Enabled) and body.thinking.budget_tokens >= body.max_tokens:
        raise InvalidRequest("thinking.budget_tokens", "is not less than max_tokens")
    for name in _SAMPLING:
        if (number := getattr(body, name)) is not None:
            setattr(request.sampling, name, number)
    if body.metadata is not None:
        request.fairness_key = body.metadata.user_id or ""
    request.priority = _CLASSES.get(body.service_tier or "", types_pb2.PRIORITY_CLASS_UNSPECIFIED)
    eager = frozenset(tool.name for tool in body.tools or () if tool.eager_input_streaming)
    told = Told(body.model, eager, is_diagnosed=body.diagnostics is not None)
    return Asked([request], MessageStream(told) if body.stream else MessageWhole(told))


DIALECT: Final = Dialect(read, refusal)


def prompt_of(body: PromptBody) -> generation_pb2.GenerateRequest:
    """Begin a request with what decides its prompt.

    Returns:
        It.

    Raises:
        InvalidRequest: names the field.
    """
    _check_only(body, "")
    request = generation_pb2.GenerateRequest(model=body.model)
    put_turns(request.chat, body.system, body.messages)
    _put_tools(request, body)
    match body.thinking:
        case Enabled(budget_tokens=budget):
            request.reasoning.enabled = True
            request.reasoning.budget_tokens = budget
        case Disabled():
            request.reasoning.enabled = False
        case _:
            pass  # the model's own way
    if body.output_config is not None:
        request.reasoning.effort = body.output_config.effort or ""
        if (asked := body.output_config.format) is not None:
            request.constraint.json_schema = as_json(asked.schema)
    return request


def _check_only(value: PromptBody | Tool, path: str) -> None:
    for name, allowed in value.ONLY.items():
        given = getattr(value, name)
        if given is not None and given not in allowed:
            raise InvalidRequest(f"{path}{name}", "is not supported")


def _put_tools(request: generation_pb2.GenerateRequest, body: PromptBody) -> None:
    choice = body.tool_choice
    if choice is not None:
        _put_choice(request, choice)
    is_enforced = choice is not None and choice.type != "auto"
    for place, tool in enumerate(body.tools or ()):
        path = f"tools[{place}]."
        _check_only(tool, path)
        if tool.strict and not is_enforced:
            problem = "is kept to only where tool_choice asks for a call"
            raise InvalidRequest(f"{path}strict", problem)
        request.tools.add(
            name=tool.name,
            description=tool.description or "",
            parameters_json_schema=as_json(tool.input_schema),
        )


def _put_choice(request: generation_pb2.GenerateRequest, choice: ToolChoice) -> None:
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequest("tool_choice.name", "goes with the type tool")
    if choice.name is not None:
        request.tool_choice.name = choice.name
    else:
        request.tool_choice.mode = _MODES[choice.type]
    if choice.disable_parallel_tool_use is not None:
        request.parallel_tool_calls = not choice.disable_parallel_tool_use
