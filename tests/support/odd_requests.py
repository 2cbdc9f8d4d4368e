"""Requests in which one field is wrong: made from the protos' own descriptors and the bounds."""

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf import message_factory, struct_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from bramley.common import bounds
from bramley.common.bounds import Json, Many, Number, Span, Text

LEADING_SOMEWHERE = ("../x", "a/b", "hf://a/b", "~/x", "/etc/passwd", "a b", "\x00", "..", "a\nb")


def kind_of(field: FieldDescriptor) -> Descriptor:
    """The message that a field is of."""
    assert field.containing_type is not None
    return field.containing_type


def bound_of(field: FieldDescriptor) -> Any:
    """What the table says of a field; None for nothing."""
    return bounds.TABLE.get(bounds.name_of(kind_of(field)), {}).get(field.name)


def is_map(field: FieldDescriptor) -> bool:
    """Whether a repeated field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_ours(field: FieldDescriptor) -> bool:
    """Whether a field holds a message of our own protos."""
    kind = field.message_type
    return kind is not None and not is_map(field) and not kind.file.package.startswith("google.")


def odd(kind: Descriptor) -> Iterator[tuple[str, Message]]:
    """Messages of a kind that are wrong at one place, in it or in a message within.

    Yields:
        The path of the place, and the message.
    """
    made: Any = message_factory.GetMessageClass(kind)
    for field in kind.fields:
        for value in bad_values(field):
            yield field.name, made(**{field.name: value})
        if field.message_type is None or not is_ours(field):
            continue
        for path, inner in odd(field.message_type):
            if field.is_repeated:
                yield f"{field.name}[0].{path}", made(**{field.name: [inner]})
            else:
                yield f"{field.name}.{path}", made(**{field.name: inner})


def bad_values(field: FieldDescriptor) -> list[Any]:
    """Values that a field can hold and its bound does not allow."""
    bound = bound_of(field)
    if not isinstance(bound, Many):
        return _bad_ones(bound, field)
    if is_map(field):
        return _bad_maps(bound, field)
    texts = field.type == FieldDescriptor.TYPE_STRING
    filler: Any = {} if field.message_type else "x" if texts else 0
    return [[filler] * (bound.most + 1), *[[bad] for bad in _bad_ones(bound.each, field)]]


def _bad_ones(bound: Any, field: FieldDescriptor) -> list[Any]:
    match bound:
        case Text():
            texts = ["x" * (bound.most + 1)] + [""] * bool(bound.least)
            return [*texts, *LEADING_SOMEWHERE] if bound.is_name else texts
        case Number():
            if field.type in {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}:
                return [math.nan, math.inf, -math.inf, bound.low - 0.5, bound.high + 0.5]
            return [int(bound.low) - 1] + [int(bound.high) + 1] * (bound.high < 2**31 - 1)
        case Span():
            none = [Duration(seconds=-1), Duration(nanos=-1), Duration(nanos=2**31 - 1)]
            long = int(bound.most_s) if bound.most_s < math.inf else 2**62
            return [*none, Duration(seconds=long, nanos=1)]
        case Json():
            return [as_struct({"k": "x" * bound.bytes_max}), as_struct({"k": [{"deep": math.nan}]})]
        case _:
            return []


def _bad_maps(bound: Many, field: FieldDescriptor) -> list[dict[Any, Any]]:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    kind = str if key.type == FieldDescriptor.TYPE_STRING else int
    fine = value.default_value
    return [
        {kind(number): fine for number in range(bound.most + 1)},
        *[{kind(1): bad} for bad in _bad_ones(bound.each, value)],
        *[{bad: fine} for bad in _bad_ones(bound.key, key)],
    ]


def as_struct(values: dict[str, Any]) -> struct_pb2.Struct:
    """Say JSON as a message."""
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct
