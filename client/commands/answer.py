"""Follows one answer on the screen: the model's load, the prompt's prefill, then its text."""

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from bramley.client.cluster import Model
from bramley.client.commands.screen import progress_bar
from bramley.client.events import Completion, Delta, Event, Gathering, Progress, ToolCall
from bramley.common.errors import InvalidRequest, QueueTimeout

if TYPE_CHECKING:
    from bramley.client.sync import Client

SERVING = ("ready", "degraded")
ENDED = ("failed", "stopped")
_SETTLED = (*SERVING, *ENDED, "unloaded")
_POLL_S = 0.1
_LONG_PROMPT_TOKENS = 1000  # shorter ones are computed before a bar is read


def read_prompt(argument: str) -> str:
    """Take a prompt from the command line, or from stdin for ``-``.

    Returns:
        The prompt.

    Raises:
        InvalidRequest: it is empty, or no text.
    """
    try:
        text = sys.stdin.buffer.read().decode() if argument == "-" else argument
    except UnicodeDecodeError as error:
        raise InvalidRequest("PROMPT", f"stdin is not UTF-8: {error}") from error
    if not text:
        raise InvalidRequest("PROMPT", "is empty")
    return text


def wait_for(client: "Client", name: str, timeout_s: float | None = None) -> Model:
    """Wait until the model ``name`` serves, or is known not to be on its way.

    Returns:
        The model. What to say of one that failed is left to the router: it has the details,
        and it knows whether the model is about to come back. One that is unloaded may be loaded
        by the first request for it, or by an operator alone.

    Raises:
        QueueTimeout: it is still on its way after ``timeout_s``.
    """
    start_s = time.monotonic()
    with progress_bar() as bar:
        while (model := client.get_model(name)).state not in _SETTLED:
            bar.draw(f"{model.state} {name}", model.load_progress)
            if timeout_s is not None and time.monotonic() - start_s > timeout_s:
                raise QueueTimeout(f"model {name!r} is still {model.state} after {timeout_s:g} s")
            time.sleep(_POLL_S)
    return model


def stream_text(events: Iterable[Event], *, write: bool) -> Completion:
    """Follow ``events`` to their end, writing what is said as it comes if ``write``.

    Content and calls of tools go to stdout, reasoning to stderr.

    Returns:
        The whole answer.
    """
    gathering = Gathering()
    page = _Page()
    try:
        with progress_bar() as bar:
            for event in events:
                gathering.add(event)
                if isinstance(event, Progress) and event.prompt_tokens > _LONG_PROMPT_TOKENS:
                    bar.draw("prefill", event.done_tokens / max(event.prompt_tokens, 1))
                elif isinstance(event, Delta) and write:
                    bar.erase()
                    page.write(sys.stderr, event.reasoning_text)
                    page.write(sys.stdout, event.text)
    finally:
        page.end_line()
    completion = gathering.completion()
    if write:
        for call in completion.tool_calls:
            page.write(sys.stdout, _line(call))
    return completion


class _Page:
    """Two streams that a person may read as one: each takes a line of its own."""

    def __init__(self) -> None:
        self._at: TextIO | None = None
        self._last = "\n"

    def write(self, stream: TextIO, text: str) -> None:
        if not text:
            return
        if stream is not self._at:
            self.end_line()
            self._at = stream
            self._dim("2")
        self._last = text
        stream.write(text)  # typer's echo would drop escape sequences
        stream.flush()

    def end_line(self) -> None:
        if self._at is None:
            return
        self._dim("0")
        if not self._last.endswith("\n"):
            self._at.write("\n")
        self._at.flush()
        self._at, self._last = None, "\n"

    def _dim(self, how: str) -> None:
        if self._at is sys.stderr and sys.stderr.isatty():
            sys.stderr.write(f"\x1b[{how}m")


def _line(call: ToolCall) -> str:
    note = "" if call.is_ended else " (cut short)"
    return f"{call.name} {call.arguments}{' (malformed)' if call.is_malformed else note}\n"
