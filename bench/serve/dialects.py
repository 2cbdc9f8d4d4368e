"""Asks one request in a server's own dialect and records it; an error is a record as well.

What counts is what a reader sees: an event is text that came. Tokens whose text is still held back
count with the next event, so that all dialects are measured by the same thing.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from bramley.bench.serve.record import LEFT, Event, Request
from bramley.bench.serve.workload import GREEDY, Asked
from bramley.client import Client
from bramley.client.events import Delta, Finished, Started
from bramley.common.errors import BramleyError

Clock = Callable[[], float]
GoOn = Callable[[Event], bool]  # told each event; False leaves the answer
ERROR_CHARACTERS = 300
# Ours, in the words that all others use.
_REASONS = {"stop_sequence": "stop", "grammar_complete": "stop"}


def to_the_end(_: Event) -> bool:
    """Read all of an answer."""
    return True


def clock() -> Clock:
    """Start a clock; it tells seconds."""
    start_s = time.monotonic()
    return lambda: time.monotonic() - start_s


class Dialect(Protocol):
    """Knows how one server is asked."""

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """Ask, and read the answer.

        Returns:
            What was seen of it, whatever happened.
        """
        ...


class Noting:
    """Notes down one request while it goes on."""

    def __init__(self, asked: Asked, now: Clock, go_on: GoOn) -> None:
        self._now = now
        self._go_on = go_on
        self._held = 0
        sent_s = now()
        self.request = Request(
            phase=asked.phase,
            attempt=asked.attempt,
            index=asked.index,
            turn=asked.turn,
            sha256=asked.sha256,
            sent_s=sent_s,
            ended_s=sent_s,
        )

    def came(self, text: str, tokens: int) -> bool:
        """Note text, and the tokens that came since the last; tell whether to go on."""
        self._held += tokens
        if not text:
            return True
        event = Event(at_s=self._now(), tokens=self._held)
        self._held = 0
        self.request.text += text
        self.request.events.append(event)
        return self._go_on(event)

    def end(
        self,
        *,
        finish: str | None = None,
        error: str | None = None,
        counted_by: Literal["ids", "usage", "events"] = "events",
    ) -> Request:
        """Note how it ended, and make the events' tokens those that the server counts.

        Returns:
            The record, whole.
        """
        request = self.request
        request.ended_s = self._now()
        request.finish, request.error, request.counted_by = finish, error, counted_by
        if error is None and finish != LEFT and request.completion_tokens is not None:
            self._balance(request.completion_tokens)
        return request

    def _balance(self, tokens: int) -> None:
        """Give what no text showed, such as an end token, to an event at the end; or take away."""
        events = self.request.events
        missing = tokens - sum(event.tokens for event in events)
        if missing > 0:
            events.append(Event(at_s=self.request.ended_s, tokens=missing))
        for event in reversed(events):
            taken = min(max(-missing, 0), event.tokens)
            event.tokens -= taken
            missing += taken


class Grpc:
    """Asks our router by our client; ids tell how many tokens came.

    Args:
        target: of the router.
        model: its name there.
        timeout_s: of a whole answer.
    """

    def __init__(self, target: str, model: str, timeout_s: float) -> None:
        self._target, self._model, self._timeout_s = target, model, timeout_s

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """See ``Dialect``."""
        with Client(self._target) as client:
            noting = Noting(asked, now, go_on)
            try:
                return self._read(client, asked, noting)
            except BramleyError as error:
                told = f"{error.code} {error.reason}: {error.message}"
                return noting.end(error=told[:ERROR_CHARACTERS], counted_by="ids")

    def _read(self, client: Client, asked: Asked, noting: Noting) -> Request:
        events = client.generate(
            self._model,
            messages=asked.messages,
            max_tokens=asked.max_tokens,
            session_key=asked.session,
            timeout_s=self._timeout_s,
            temperature=GREEDY["temperature"],
        )
        finish, request = None, noting.request
        with closing(events):
            for event in events:
                match event:
                    case Started():
                        request.prompt_tokens = event.prompt_tokens
                        request.cached_tokens = event.cached_tokens
                    case Delta():
                        text = event.reasoning_text + event.text
                        if not noting.came(text, len(event.token_ids)):
                            return noting.end(finish=LEFT, counted_by="ids")
                    case Finished():
                        finish = _REASONS.get(event.reason, event.reason)
                        request.prompt_tokens = event.usage.prompt_tokens
                        request.completion_tokens = event.usage.completion_tokens
                        request.cached_tokens = event.usage.cached_tokens
                    case _:
                        pass
        return noting.end(finish=finish, counted_by="ids")


class _Words(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None

    def text(self) -> str:
        calls = json.dumps(self.tool_calls) if self.tool_calls else ""
        return (self.reasoning_content or self.reasoning or "") + (self.content or "") + calls


class _Choice(msgspec.Struct):
    delta: _Words | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class Refused(Exception):
    """The server answered with an error, or not to its end."""


class Chat:
    """Asks over HTTP as OpenAI's chat completions, streamed; each chunk of text is a token.

    Where the server tells its usage at the end, that counts instead.

    Args:
        url: of the server, with or without ``/v1``.
        model: its name there.
        timeout_s: between two signs of life.
        session_field: of a body, in which the server takes a conversation's name, if it does.
    """

    def __init__(self, url: str, model: str, timeout_s: float, session_field: str = "") -> None:
        self._url, self._model, self._timeout_s = url, model, timeout_s
        self._session_field = session_field

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """See ``Dialect``."""
        noting = Noting(asked, now, go_on)
        body = {
            "model": self._model,
            "messages": asked.messages,
            "max_tokens": asked.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **GREEDY,
        }
        if self._session_field and asked.session:
            body[self._session_field] = asked.session
        try:
            with closing(connection(self._url, self._timeout_s)) as opened:
                headers = {"Content-Type": "application/json"}
                path = path_of(self._url, "/chat/completions")
                opened.request("POST", path, json.dumps(body), headers)
                return self._read(opened.getresponse(), noting)
        except (OSError, http.client.HTTPException, msgspec.DecodeError, Refused) as error:
            told = str(error) or type(error).__name__
            return noting.end(error=told[:ERROR_CHARACTERS])

    def _read(self, response: http.client.HTTPResponse, noting: Noting) -> Request:
        if response.status != http.HTTPStatus.OK:
            told = response.read(ERROR_CHARACTERS).decode(errors="replace")
            raise Refused(f"HTTP {response.status}: {told}")
        finish, request = None, noting.request
        for chunk in chunks(response):
            if chunk.error is not None:
                raise Refused(f"in the stream: {chunk.error}")
            for choice in chunk.choices or ():
                text = choice.delta.text() if choice.delta else ""
                if not noting.came(text, 1 if text else 0):
                    return noting.end(finish=LEFT)
                finish = choice.finish_reason or finish
            if (usage := chunk.usage) is not None:
                request.prompt_tokens = usage.prompt_tokens
                request.completion_tokens = usage.completion_tokens
                if usage.prompt_tokens_details is not None:
                    cached = usage.prompt_tokens_details.cached_tokens
                    request.cached_tokens = None if cached is None else {"any": cached}
        if finish is None:
            raise Refused("the stream was cut before its end")
        return noting.end(
            finish=finish, counted_by="events" if request.completion_tokens is None else "usage"
        )


def chunks(response: http.client.HTTPResponse) -> Iterator[_Chunk]:
    """Read the data of an event stream, up to its end."""
    for line in response:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield msgspec.json.decode(data, type=_Chunk)


def connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Make a connection to a server; nothing is sent."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    made = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return made(parts.hostname or "", parts.port, timeout=timeout_s)


def path_of(url: str, path: str) -> str:
    """Place a path below a server's ``/v1``."""
    base = urlsplit(url).path.rstrip("/")
    return (base if base.endswith("/v1") else f"{base}/v1") + path
