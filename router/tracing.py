"""Traces of requests: a span each, and one for each phase, made at its end from its times.

Where nobody collects them, the caller's trace is passed on to the worker as it came.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import msgspec

from bramley.common.traces import TraceParent


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces go; it takes the extra ``otel``.

    Attributes:
        endpoint: of a collector that speaks OTLP over gRPC, as in "http://127.0.0.1:4317"; empty
            for nowhere.
        sample: share of requests that are traced, of those that come without a trace; others go
            by what their trace says.
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^(https?://\S+)?$")] = ""
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0


class Phase(NamedTuple):
    """A part of a request's time, in seconds since it was received."""

    name: str
    begin_s: float
    end_s: float


def phases(queue_s: float, ttft_s: float, total_s: float) -> list[Phase]:
    """Tell a request's phases.

    Args:
        queue_s: received to handed to a worker; 0 if it never was.
        ttft_s: received to the first token sent; 0 if there was none.
        total_s: received to ended.

    Returns:
        Those that it came to, without a gap.
    """
    if not queue_s:
        return [Phase("queue", 0.0, total_s)]
    found = [Phase("queue", 0.0, queue_s), Phase("prefill", queue_s, ttft_s or total_s)]
    if ttft_s:
        found.append(Phase("decode", ttft_s, total_s))
    return found


class Trace(Protocol):
    """Of one request."""

    @property
    def is_recorded(self) -> bool:
        """Whether anybody wants to know how it ends."""
        ...

    @property
    def parent(self) -> TraceParent | None:
        """What its worker is told; None without a trace."""
        ...

    def end(self, code: str, spent: list[Phase], facts: Mapping[str, str | int]) -> None:
        """Tell how it ended, by the name of its status code."""
        ...


class Tracing(Protocol):
    """Of all requests."""

    def begin(self, parent: TraceParent | None) -> Trace:
        """Begin with a request, which is a part of ``parent``."""
        ...

    def close(self) -> None:
        """Send what was not sent yet; may block for a while."""
        ...


@dataclass(frozen=True, slots=True)
class Passed:
    """A trace of others, of which nothing is recorded here."""

    parent: TraceParent | None
    is_recorded: bool = False

    def end(self, code: str, spent: list[Phase], facts: Mapping[str, str | int]) -> None:
        """Record nothing."""


class Passing:
    """Passes traces on."""

    def begin(self, parent: TraceParent | None) -> Trace:
        """Pass the caller's on."""
        return Passed(parent)

    def close(self) -> None:
        """Nothing waits."""
