"""What a call carries besides its message: which trace it is a part of, and which request (pure).

The trace is W3C's ``traceparent`` and ``tracestate``, in a call's metadata. Without anything that
collects traces they are passed on as they came, and the trace's id is in the log.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

Metadata = tuple[tuple[str, str], ...]

_PARENT = "traceparent"
_STATE = "tracestate"
_REQUEST = "bramley-request-id"
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_MAX = 512  # characters: a longer one is dropped, as W3C allows
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A span that others are parts of.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        flags: bit 0 says that somebody records it.
        state: of whoever made it, passed on as it is.
    """

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether somebody records it."""
        return bool(self.flags & _SAMPLED)

    @property
    def header(self) -> str:
        """Write it as ``traceparent``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse(header: str, state: str = "") -> TraceParent | None:
    """Read ``traceparent``.

    Returns:
        The span; None where it is not well-formed, and so no trace.
    """
    found = _HEADER.fullmatch(header)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_newer = version != "00"
    if version == "ff" or (more and not is_newer) or not (int(trace_id, 16) and int(span_id, 16)):
        return None
    return TraceParent(trace_id, span_id, int(flags, 16), state if len(state) <= _STATE_MAX else "")


def parent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> TraceParent | None:
    """Find the span that a call is a part of; None without one, or with more than one."""
    parents: list[str] = []
    states: list[str] = []
    for key, value in metadata or ():
        if key == _PARENT and isinstance(value, str):
            parents.append(value)
        elif key == _STATE and isinstance(value, str):
            states.append(value)
    return parse(parents[0], ",".join(states)) if len(parents) == 1 else None


def request_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Find the id of the request that a call between our processes serves; empty without one."""
    for key, value in metadata or ():
        if key == _REQUEST and isinstance(value, str):
            return value
    return ""


def metadata_of(request_id: str, parent: TraceParent | None) -> Metadata:
    """Say what a call carries to another process of ours."""
    carried = [(_REQUEST, request_id)]
    if parent is not None:
        carried.append((_PARENT, parent.header))
        if parent.state:
            carried.append((_STATE, parent.state))
    return tuple(carried)
