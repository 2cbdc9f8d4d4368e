"""Log lines on stderr: time, level, process, request id, message, facts as key=value."""

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        parts = [f"{when}.{int(record.msecs):03d}", record.levelname, self._process]
        if current := request_id.get():
            parts.append(f"request={current}")
        parts.append(record.getMessage())
        facts: object = getattr(record, "facts", None)
        if isinstance(facts, Mapping):
            parts += [f"{key}={value}" for key, value in facts.items()]  # pyright: ignore[reportUnknownVariableType]
        line = " ".join(parts).replace("\n", "\\n")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def setup(process: str) -> None:
    """Send everything to stderr, signed with ``process`` ("router", "worker/llama-8b")."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def facts(**values: object) -> dict[str, object]:
    """Facts of a line: ``log.info("loaded", extra=facts(seconds=1.5))``."""
    return {"facts": values}
