"""OpenAI's objects: what its clients read, field by field (pure)."""

from typing import Any, Literal

import msgspec

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Call, Totals
from bramley.router.gateway.openai.options import renamed

_ENDS = {
    types_pb2.FINISH_REASON_LENGTH: "length",
    types_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Codes that OpenAI's own clients know by name.
_CODES = {"NOT_FOUND": "model_not_found", "UNAUTHENTICATED": "invalid_api_key"}

DONE = b"data: [DONE]\n\n"


class Told(msgspec.Struct, frozen=True):
    """What every object of an answer repeats.

    Attributes:
        model: as it was asked for.
        created: seconds since 1970.
        answers: that were asked for, of each prompt.
        prompts: that were given.
        tells_usage: whether a stream ends with its counts.
    """

    model: str
    created: int
    answers: int
    prompts: int = 1
    tells_usage: bool = False


class Cached(msgspec.Struct, frozen=True):
    """Of the prompt."""

    cached_tokens: int


class Reasoned(msgspec.Struct, frozen=True):
    """Of the answers."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached
    completion_tokens_details: Reasoned


def usage_of(totals: Totals) -> Usage:
    """Say counts; the one place for both modes and both kinds of completion."""
    return Usage(
        prompt_tokens=totals.prompt,
        completion_tokens=totals.completion,
        total_tokens=totals.prompt + totals.completion,
        prompt_tokens_details=Cached(totals.cached),
        completion_tokens_details=Reasoned(totals.reasoning),
    )


def reason_of(finished: generation_pb2.Finished) -> str:
    """Say why an answer ended."""
    return _ENDS.get(finished.reason, "stop")


def matched_by(finished: generation_pb2.Finished) -> str | int | None:
    """Say what ended it, where the request had named it."""
    if finished.reason != types_pb2.FINISH_REASON_STOP_SEQUENCE:
        return None
    kind = finished.WhichOneof("match")
    return None if kind is None else getattr(finished, kind)


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is called; a part of its arguments, in a stream."""

    name: str | None = None
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool, or in a stream a part of one."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: Function | None = None


def call_of(call: Call) -> ToolCall:
    """Say a whole call."""
    function = Function(call.name, "".join(call.arguments))
    return ToolCall(id=call.id, type="function", function=function)


def part_of(part: types_pb2.ToolCallDelta) -> ToolCall:
    """Say a part of a call: the first one names it."""
    if part.id or part.name:
        function = Function(part.name, part.arguments_json)
        return ToolCall(part.index, part.id, "function", function)
    return ToolCall(part.index, function=Function(arguments=part.arguments_json))


def event(value: Any) -> bytes:  # noqa: ANN401 -- any struct
    """Say one event of a stream."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class Problem(msgspec.Struct, frozen=True):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str


class Refusal(msgspec.Struct, frozen=True):
    """What is answered instead."""

    error: Problem


def refusal_of(failure: Failure) -> Refusal:
    """Say a failure; the router's name of a field becomes the body's."""
    param = failure.field or None
    message = failure.message
    if param and failure.is_router:
        param = renamed(param)
        # A switch that contradicts another field is named inside the sentence.
        message = message.replace("chat.template_kwargs.", "chat_template_kwargs.")
    if param and message.startswith(f"{failure.field}: "):
        message = f"{param}{message.removeprefix(failure.field)}"
    kind = _KINDS.get(failure.status)
    if kind is None:
        kind = "invalid_request_error" if failure.status < 500 else "server_error"
    code = _CODES.get(failure.reason) or failure.reason.lower()
    return Refusal(Problem(message, kind, param, code))


def refusal(failure: Failure) -> bytes:
    """Say a failure as a body."""
    return msgspec.json.encode(refusal_of(failure))


def shown(token: bytes) -> str:
    """Show a token; a part of a character, which is no text, as OpenAI shows it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in token])
