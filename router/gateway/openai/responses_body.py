"""OpenAI's responses: a body, field by field."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from bramley.router.gateway.openai.options import Effort, Int32, ServiceTier
from bramley.router.gateway.openai.responses_items import Strict
from bramley.router.gateway.openai.tools import Mode

LOGPROBS: Final = "message.output_text.logprobs"
# What is thought is told in the open, so that there is nothing to be added.
ENCRYPTED: Final = "reasoning.encrypted_content"


class StreamOptions(Strict, frozen=True):
    """How a stream is told."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}

    include_obfuscation: Any = None


class ReasoningOptions(Strict, frozen=True):
    """How much is thought. Summaries are made by no model here; all of it is told."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "summary": ("auto",),
        "generate_summary": ("auto",),
        "context": ("auto",),
        "mode": ("standard",),
    }

    effort: Effort | None = None
    summary: Any = None
    generate_summary: Any = msgspec.UNSET
    context: Any = msgspec.UNSET
    mode: Any = msgspec.UNSET


class TextFormat(Strict, frozen=True):
    """What the content has to be; a schema is always kept to, ``strict`` or not."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | msgspec.UnsetType = msgspec.UNSET
    schema: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    strict: bool | msgspec.UnsetType | None = msgspec.UNSET


class TextOptions(Strict, frozen=True):
    """How the content is written."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None
    verbosity: Any = None


class Tool(Strict, frozen=True):
    """A function that may be called."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "allowed_callers": (["direct"],),
        "async_": (False,),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: Any = msgspec.UNSET
    async_: Any = msgspec.field(default=msgspec.UNSET, name="async")
    defer_loading: Any = msgspec.UNSET
    output_schema: Any = msgspec.UNSET


class ChosenTool(Strict, frozen=True):
    """The function that is to be called."""

    type: Literal["function"]
    name: str


class ResponseBody(Strict, frozen=True):
    """A body."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "access_programs": (),
        "background": (False,),
        "background_options": (),
        "context_management": (),
        "conversation": (),
        "image": (),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
        "truncation": ("disabled",),
    }

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Int32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    include: list[str] | None = None
    top_logprobs: Int32 | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Mode | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: str | None = None
    user: str | None = None
    access_programs: Any = None
    background: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    truncation: Any = None
