"""Anthropic's objects: what its clients read, field by field (pure)."""

from typing import Final, Literal

import msgspec

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Totals
from bramley.router.gateway.names import Names

SIGNATURE: Final = "unsigned"  # of reasoning: clients send it back and drop what has none
MALFORMED: Final = "INVALID_JSON"  # Anthropic's own key for what should have been an object

_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ENDS: Final = {
    types_pb2.FINISH_REASON_LENGTH: "max_tokens",
    types_pb2.FINISH_REASON_STOP_SEQUENCE: "stop_sequence",
    types_pb2.FINISH_REASON_TOOL_CALLS: "tool_use",
}


class Thought(msgspec.Struct, frozen=True):
    """Of the answer."""

    thinking_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens; what was cached is not part of the input."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: Thought
    cache_creation_input_tokens: int = 0


def usage_of(totals: Totals) -> Usage:
    """Say counts; the one place for both modes."""
    return Usage(
        input_tokens=totals.prompt - totals.cached,
        cache_read_input_tokens=totals.cached,
        output_tokens=totals.completion,
        output_tokens_details=Thought(totals.reasoning),
    )


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Content."""

    text: str


class Thinking(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning."""

    thinking: str
    signature: str


class ToolUse(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; its input is an object."""

    id: str
    name: str
    input: msgspec.Raw


Block = Text | Thinking | ToolUse


class End(msgspec.Struct, frozen=True):
    """Why an answer ended; of one that has not, nothing is known."""

    stop_reason: str | None = None
    stop_sequence: str | None = None


def end_of(finished: generation_pb2.Finished, *, has_called: bool) -> End:
    """Say why an answer ended.

    Args:
        finished: its end.
        has_called: whether it calls tools; then it waits for them, also where a call is malformed.

    Returns:
        It.
    """
    reason = _ENDS.get(finished.reason) or ("tool_use" if has_called else "end_turn")
    is_matched = reason == "stop_sequence" and finished.WhichOneof("match") == "stop_string"
    return End(reason, finished.stop_string if is_matched else None)


class Unavailable(msgspec.Struct, frozen=True, tag_field="type", tag="unavailable"):
    """Nobody compares a prompt with the one before it."""


class Diagnostics(msgspec.Struct, frozen=True):
    """Why no more of the prompt was cached."""

    cache_miss_reason: Unavailable


class Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="message",
    omit_defaults=True,
):
    """An answer.

    Attributes:
        diagnostics: where they were asked for.
    """

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage
    diagnostics: Diagnostics | None = None


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event: an answer without content."""

    message: Message


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Says nothing."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More content."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of reasoning."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON text."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """What is new in a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block has ended."""

    index: int


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The answer has ended."""

    delta: End
    usage: Usage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Reason(msgspec.Struct, frozen=True):
    """Our own word for an error."""

    error_code: str


class Problem(msgspec.Struct, frozen=True):
    """An error."""

    type: str
    message: str
    details: Reason


class Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """What is answered instead, and an event of a stream that goes no further."""

    error: Problem
    request_id: str | None


Event = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Refusal
)


def said(event: Event) -> bytes:
    """Say one event of a stream."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def refusal_of(failure: Failure) -> Refusal:
    """Say a failure; the router's name of a field becomes the body's."""
    message = failure.message
    if failure.field and failure.is_router and message.startswith(f"{failure.field}: "):
        message = f"{renamed(failure.field)}{message.removeprefix(failure.field)}"
    if failure.reason == "CONTEXT_LENGTH_EXCEEDED":  # what agents look for, to shorten it
        message = f"prompt is too long: {message}"
    kind = _KINDS.get(failure.status)
    if kind is None:
        kind = "invalid_request_error" if failure.status < 500 else "api_error"
    problem = Problem(kind, message, Reason(failure.reason.lower()))
    return Refusal(problem, failure.request_id or None)


def refusal(failure: Failure) -> bytes:
    """Say a failure as a body."""
    return msgspec.json.encode(refusal_of(failure))


# Which turn of the router's is which of the body's is not known here.
renamed: Final = Names(
    (r"chat.*", "messages"),
    (r"constraint.*", "output_config.format"),
    (r"sampling\.(.*)", r"\1"),
    (r"stop\.strings(.*)", r"stop_sequences\1"),
    (r"stop\.(.*)", r"\1"),
    (r"tools\[(\d+)\]\.parameters_json_schema", r"tools[\1].input_schema"),
    (r"tool_choice\.mode", "tool_choice"),
    (r"reasoning\.budget_tokens", "thinking.budget_tokens"),
    (r"reasoning\.enabled", "thinking"),
    (r"reasoning\.effort", "output_config.effort"),
    (r"fairness_key", "metadata.user_id"),
    (r"priority", "service_tier"),
)
