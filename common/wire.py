"""Our values and their form in messages: seconds, names of enum values, token ids (pure)."""

import sys
from array import array
from collections.abc import Iterable
from typing import Protocol

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration

_DURATION_MAX_S = 315_576_000_000  # ten thousand years: by the definition of the message
_NANOS = 1_000_000_000


def to_duration(seconds: float) -> Duration:
    """Say ``seconds`` as a message."""
    whole, fraction = divmod(int(seconds * _NANOS), _NANOS)
    return Duration(seconds=whole, nanos=fraction)


def to_seconds(duration: Duration) -> float:
    """Read a message as seconds."""
    return duration.seconds + duration.nanos / _NANOS


def is_span(duration: Duration) -> bool:
    """Whether it is a well-formed time, and not a negative one."""
    return 0 <= duration.seconds <= _DURATION_MAX_S and 0 <= duration.nanos < _NANOS


class Enum(Protocol):
    """A generated enum."""

    @property
    def DESCRIPTOR(self) -> EnumDescriptor:  # noqa: N802
        """Its definition."""
        ...


def short_name(enum: Enum, value: int) -> str:
    """Name a value without its enum's prefix: ``READY`` of ``MODEL_STATE_READY``.

    Returns:
        The name, or the number of a value that a newer peer knows.
    """
    values = enum.DESCRIPTOR.values_by_number
    if value not in values:
        return str(value)
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return values[value].name.removeprefix(prefix)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Say token ids as little-endian words of 32 bits."""
    return _little_endian(array("I", ids)).tobytes()


def unpack_ids(data: bytes) -> "array[int]":
    """Read token ids of little-endian words of 32 bits.

    Returns:
        The ids.

    Raises:
        ValueError: it is not a whole number of words.
    """
    return _little_endian(array("I", data))


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
