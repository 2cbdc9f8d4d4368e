"""What each field of a request may hold: one table, and the walk that checks a message by it.

Pure. The router checks every public request before it does anything for it; a worker checks
what it computes with. What depends on the model, its tokens and context, worker/intake.py
checks. Which fields go together is in common/together.py. A field is named by its path, as in
``chat.messages[3].role``.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from bramley.common.errors import InvalidRequest
from bramley.common.wire import is_span, to_seconds
from bramley.protos.v1 import generation_pb2

REQUEST_BYTES_MAX: Final = 63 << 20  # with what is added on its way to a worker it stays a message
TEXT_MAX: Final = 16 << 20
IDS_MAX: Final = 4 << 20
KEY_MAX: Final = 256
_DAY_S = 86400.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Text:
    """Characters of a text; ``is_name`` allows no ``/``, no space, nothing that leads anywhere."""

    most: int
    least: int = 0
    is_name: bool = False

    def check(self, path: str, value: Any) -> None:  # noqa: ANN401
        """Refuse what is too long, too short, or no name."""
        if not self.least <= len(value) <= self.most:
            problem = f"{len(value)} characters are not from {self.least} to {self.most}"
            raise InvalidRequest(path, problem)
        if self.is_name and value and not _NAME.fullmatch(value):
            raise InvalidRequest(path, "is no name: letters, digits, '.', '_' and '-'")


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in a range."""

    low: float
    high: float

    def check(self, path: str, value: Any) -> None:  # noqa: ANN401
        """Refuse what is outside."""
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise InvalidRequest(
                path, f"{value:.10g} is not from {self.low:.10g} to {self.high:.10g}"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """A well-formed time, not negative."""

    most_s: float = math.inf

    def check(self, path: str, value: Duration) -> None:
        """Refuse what is none, or too long."""
        if not (is_span(value) and to_seconds(value) <= self.most_s):
            raise InvalidRequest(path, f"is not a time from 0 to {self.most_s:g} s")


@dataclass(frozen=True, slots=True)
class Json:
    """A free-form object; its depth is bounded by the reader of messages."""

    bytes_max: int

    def check(self, path: str, value: struct_pb2.Struct) -> None:
        """Refuse what is too big, or holds what JSON cannot say."""
        if (size := value.ByteSize()) > self.bytes_max:
            raise InvalidRequest(path, f"{size} bytes are over {self.bytes_max}")
        if not all(map(math.isfinite, _numbers(value))):
            raise InvalidRequest(path, "holds a number that is not finite")


@dataclass(frozen=True, slots=True)
class Free:
    """Whatever its field can hold means something."""

    def check(self, path: str, value: Any) -> None:  # noqa: ANN401
        """Refuse nothing."""


One = Text | Number | Span | Json | Free


@dataclass(frozen=True, slots=True)
class Many:
    """How many of a repeated field or map; ``each`` of them, where they are no messages."""

    most: int
    each: One | None = None
    key: One | None = None


Bound = One | Many

_ID = Text(KEY_MAX)
_MODEL = Text(64)  # an unknown one, of any letters, is NOT_FOUND
_ADAPTER = Text(64, is_name=True)
_FREE = Free()
_IDS = Many(IDS_MAX, _FREE)
_SCHEMA = Text(1 << 20)
_SOME = Text(1 << 20, 1)  # where an empty one says nothing
_TOOL = Text(128, is_name=True)

# By the message's name and the field's. A message in a field is walked into.
TABLE: Final[Mapping[str, Mapping[str, Bound]]] = {
    "GenerateRequest": {
        "request_id": _ID,
        "model": _MODEL,
        "text": Text(TEXT_MAX),
        "n": Number(1, 16),
        "tools": Many(512),
        "adapter": _ADAPTER,
        "fairness_key": _ID,
        "session_key": _ID,
        "max_queue_time": Span(),
        "labels": Many(64, Text(1024), Text(128)),
    },
    "TokenIds": {"ids": _IDS},
    "ChatInput": {"messages": Many(16384), "template_kwargs": Json(64 << 10)},
    "ChatMessage": {
        "role": Text(64),
        "content": Text(TEXT_MAX),
        "parts": Many(1024),
        "tool_calls": Many(512),
        "tool_call_id": _ID,
        "name": _ID,
        "reasoning_content": Text(TEXT_MAX),
    },
    "ContentPart": {"text": Text(TEXT_MAX)},
    "ToolCall": {"id": _ID, "name": _ID, "arguments_json": _SCHEMA},
    "Tool": {"name": _TOOL, "description": Text(64 << 10), "parameters_json_schema": _SCHEMA},
    "ToolChoice": {"name": _TOOL},
    "SamplingParams": {
        "temperature": Number(0, 100),
        "top_p": Number(0, 1),
        "top_k": Number(-1, 2**31 - 1),
        "min_p": Number(0, 1),
        "seed": _FREE,
        "xtc_probability": Number(0, 1),
        "xtc_threshold": Number(0, 1),
        "repetition_penalty": Number(0.1, 100),
        "presence_penalty": Number(-2, 2),
        "frequency_penalty": Number(-2, 2),
        "penalty_window": _FREE,
        "logit_bias": Many(1024, Number(-100, 100), _FREE),
    },
    "StopConditions": {
        "max_tokens": Number(1, 2**31 - 1),
        "min_tokens": Number(0, 2**31 - 1),
        "strings": Many(64, Text(1024, 1)),
        "token_ids": Many(1024, _FREE),
        "bad_words": Many(128, Text(256, 1)),
    },
    "Constraint": {"json_schema": _SOME, "regex": Text(64 << 10, 1), "grammar": _SOME},
    "Constraint.Choice": {"values": Many(1024, Text(1024, 1))},
    "ReasoningOptions": {"budget_tokens": Number(0, 2**31 - 1), "effort": Text(64)},
    "LogprobOptions": {"top": Number(0, 20)},
    "SpeculationOptions": {"max_draft_tokens": Number(0, 1024)},
    "CacheHints": {"salt": _ID},
    "StreamOptions": {"max_delay": Span(10.0), "max_tokens_per_message": _FREE},
    "EmbedRequest": {
        "model": _MODEL,
        "texts": Many(2048, Text(TEXT_MAX)),
        "token_ids": Many(2048),
        "dimensions": Number(1, 2**31 - 1),
        "request_id": _ID,
        "fairness_key": _ID,
    },
    "TokenizeRequest": {"model": _MODEL, "text": Text(TEXT_MAX), "tools": Many(512)},
    "DetokenizeRequest": {"model": _MODEL, "token_ids": Many(1 << 20, _FREE)},
    "GetModelRequest": {"model": _MODEL},
    "LoadModelRequest": {"model": _MODEL},
    "UnloadModelRequest": {"model": _MODEL, "drain_timeout": Span(_DAY_S)},
    "PinModelRequest": {"model": _MODEL},
    "LoadAdapterRequest": {"model": _MODEL, "adapter": _ADAPTER},
    "UnloadAdapterRequest": {"model": _MODEL, "adapter": _ADAPTER},
    "AbortRequest": {"request_ids": Many(1024, _ID), "reason": Text(1024)},
    "FlushCacheRequest": {"model": _MODEL},
    "ExplainCacheRequest": {
        "model": _MODEL,
        "text": Text(TEXT_MAX),
        "adapter": _ADAPTER,
        "salt": _ID,
        "tools": Many(512),
    },
    "CloseSessionRequest": {"model": _MODEL, "session_key": _ID, "salt": _ID},
}

_BY_FULL_NAME = {f"{generation_pb2.DESCRIPTOR.package}.{name}": of for name, of in TABLE.items()}
_NONE: Mapping[str, Bound] = {}


def check(message: Message, path: str = "", only: Container[str] | None = None) -> None:
    """Check a message that is at ``path`` of a request, or ``only`` some of its fields.

    Raises:
        InvalidRequest: names the field.
    """
    bounds = _BY_FULL_NAME.get(message.DESCRIPTOR.full_name, _NONE)
    for field, value in message.ListFields():
        if only is not None and field.name not in only:
            continue
        where = f"{path}.{field.name}" if path else field.name
        bound = bounds.get(field.name)
        if isinstance(bound, Many):
            _check_many(bound, where, value)
        elif bound is not None:
            bound.check(where, value)
        elif isinstance(value, Message):
            check(value, where)
        elif field.enum_type is not None and value not in field.enum_type.values_by_number:
            raise InvalidRequest(where, f"{value} is not known")


def name_of(message: Any) -> str:  # noqa: ANN401 -- a Descriptor, in either of its types
    """Name a kind of message as the table does: without its package."""
    return message.full_name.removeprefix(f"{message.file.package}.")


def _check_many(bound: Many, path: str, values: Any) -> None:  # noqa: ANN401
    if len(values) > bound.most:
        raise InvalidRequest(path, f"{len(values)} of them is over {bound.most}")
    if bound.key is not None:
        mapping = cast("Mapping[object, object]", values)
        _check_each(bound.key, path, mapping.keys())
        values = mapping.values()
    if bound.each is not None:
        _check_each(bound.each, path, values)
        return
    for index, value in enumerate(values):
        check(value, f"{path}[{index}]")


def _check_each(bound: One, path: str, values: Iterable[Any]) -> None:
    if isinstance(bound, Free):  # of millions, maybe
        return
    for value in values:
        bound.check(path, value)


def _numbers(value: struct_pb2.Struct | struct_pb2.ListValue) -> Iterator[float]:
    values = value.fields.values() if isinstance(value, struct_pb2.Struct) else value.values
    for each in values:
        match each.WhichOneof("kind"):
            case "number_value":
                yield each.number_value
            case "struct_value":
                yield from _numbers(each.struct_value)
            case "list_value":
                yield from _numbers(each.list_value)
            case _:
                pass
