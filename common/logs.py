"""Log lines on stderr, for people or for machines: who says what, of which request, with facts.

``text``: time, level, process, request id, message, facts as key=value. ``json``: one object a
line, with the facts as its fields. No line ever holds a prompt, an answer or a token.
"""

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from bramley.common import traces

Format = Literal["text", "json"]

# Of the call that is being handled; tasks and threads made in it (asyncio.to_thread) inherit both.
request_id: ContextVar[str] = ContextVar("request_id", default="")
trace_id: ContextVar[str] = ContextVar("trace_id", default="")

# Control characters, which break lines or move a terminal's cursor, and Unicode's ends of lines.
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_BEFORE_WORDS = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+ [A-Z]+ \S+ ")
_OWN_FIELDS = frozenset(
    {"time", "level", "process", "pid", "request_id", "trace_id", "message", "exception"}
)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How every process of a node writes its log.

    Attributes:
        format: "text" for people, "json" for machines: an object a line.
    """

    format: Format = "text"


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        parts = [f"{when}.{int(record.msecs):03d}", record.levelname, self._process]
        if current := request_id.get():
            parts.append(f"request={current}")
        if trace := trace_id.get():
            parts.append(f"trace={trace}")
        parts.append(record.getMessage())
        parts += [f"{key}={value}" for key, value in _facts_of(record).items()]
        line = _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], " ".join(parts))
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._own = {"process": process, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        told = dict(_facts_of(record))
        # A line of another thread names its request as a fact.
        request = request_id.get() or told.pop("request", "")
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            **self._own,
        }
        if request:
            line["request_id"] = request
        if trace := trace_id.get():
            line["trace_id"] = trace
        line["message"] = record.getMessage()
        for key, value in told.items():
            line[f"fact_{key}" if key in _OWN_FIELDS else key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    told: object = getattr(record, "facts", None)
    return told if isinstance(told, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def setup(process: str, form: Format = "text") -> None:
    """Send everything to stderr, signed with ``process`` ("router", "worker/llama-8b")."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(process, form))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def formatter(process: str, form: Format) -> logging.Formatter:
    """Make what writes the lines of a process."""
    return _JsonFormatter(process) if form == "json" else _Formatter(process)


def facts(**values: object) -> dict[str, object]:
    """Facts of a line: ``log.info("loaded", extra=facts(seconds=1.5))``."""
    return {"facts": values}


def follow(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Have the lines of this call name the request and the trace that its caller's do."""
    carried = tuple(metadata or ())
    parent = traces.parent_in(carried)
    request_id.set(traces.request_in(carried))
    trace_id.set(parent.trace_id if parent else "")


def words_of(line: str) -> str:
    """Say what a line of a log says to people: without when, how bad and whose it is."""
    try:
        told = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return _BEFORE_WORDS.sub("", line)
    exception = str(told.get("exception", "")).strip()
    return exception.rpartition("\n")[2] if exception else str(told.get("message", line))
