"""What makes a dialect: one file turns its bodies into requests, and responses into its objects.

All of it is pure; router/gateway/calls.py and generating.py do what is to be done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gateway.failures import Failure


class Answer(Protocol):
    """Puts one request's responses into words; what it returns is sent as it is.

    Attributes:
        media_type: of what it says.
    """

    media_type: str

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response; empty where there is nothing to be said yet.

        Raises:
            BramleyError: the answer cannot go on.
        """
        ...

    def end(self) -> bytes:
        """Say the rest, once the responses have ended well.

        Raises:
            EngineFault: they ended before the answer did.
        """
        ...

    def fail(self, failure: Failure) -> bytes:
        """Say that it goes no further, after something was said."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A body, understood.

    Attributes:
        requests: that run side by side, all or none: one for each prompt.
        answer: says what comes of them, with their answers numbered prompt by prompt.
        names: of fields that this body names otherwise than its dialect mostly does, by the
            router's (``failures.named``).
    """

    requests: Sequence[generation_pb2.GenerateRequest]
    answer: Answer
    names: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to ask for a generation.

    Attributes:
        read: takes a body's plain values and the time, in seconds since 1970; raises
            InvalidRequest, which names a field of the body.
        refusal: says a failure before anything else was said.
    """

    read: Callable[[object, int], Asked]
    refusal: Callable[[Failure], bytes]
