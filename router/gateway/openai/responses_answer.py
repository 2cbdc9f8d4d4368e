"""OpenAI's responses: what an answer says, whole or as a stream (pure).

Both modes make the same items, so that a stream's last event has what a whole answer is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Tally, Totals
from bramley.router.gateway.openai import objects, responses_failures
from bramley.router.gateway.openai.responses_items import Item, named
from bramley.router.gateway.openai.responses_writing import Event, Writing
from bramley.router.gateway.openai.stored import Kept

Keep = Callable[[str, Kept], None]

_CODES: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class InputDetails(msgspec.Struct, frozen=True):
    """Of the prompt; nothing is written at a price."""

    cached_tokens: int
    cache_write_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: objects.Reasoned
    total_tokens: int


class Incomplete(msgspec.Struct, frozen=True):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Problem(msgspec.Struct, frozen=True):
    """Why there is none."""

    code: str
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, with what it repeats of its body."""

    id: str = ""
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: Literal[False] = False
    error: Problem | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: Sequence[Item] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: Usage | None = None
    user: str | None


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer is made from.

    Attributes:
        response: as it is before anything was said.
        items: of the body's input.
        item_bytes: of them, as JSON.
        before: the answer that this one goes on from.
        keep: keeps it; None where it is not to be kept.
    """

    response: Response
    items: Sequence[Item]
    item_bytes: int
    before: Kept | None
    keep: Keep | None


class _Answer:
    """Follows one answer."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._tally = Tally(1)
        self._writing = Writing()
        self._is_cut = False

    def _take(self, response: router_pb2.GenerateResponse) -> Iterable[Event]:
        """Take the next response; says what comes of it."""
        self._tally.add(response)
        match response.WhichOneof("event"):
            case "accepted":
                self._writing.request_id = self._tally.request_id
            case "delta":
                return self._writing.add(response.delta)
            case "finished":
                self._is_cut = _is_cut(response.finished)
                return self._writing.end(is_cut=self._is_cut)
            case _:
                pass
        return ()

    def _now(self) -> Response:
        return msgspec.structs.replace(self._said.response, id=self._id)

    def _whole(self) -> Response:
        """Say all of it, and keep it."""
        self._tally.check_ended()
        whole = msgspec.structs.replace(
            self._now(),
            status="incomplete" if self._is_cut else "completed",
            incomplete_details=Incomplete() if self._is_cut else None,
            output=self._writing.items,
            usage=_usage_of(self._tally.totals),
        )
        if self._said.keep is not None:
            self._said.keep(self._id, self._kept(whole))
        return whole

    def _kept(self, whole: Response) -> Kept:
        before, request_id = self._said.before, self._tally.request_id
        items = [
            named(item, f"{item.PREFIX}_{request_id}_in{place}")
            for place, item in enumerate(self._said.items)
        ]
        output = [named(item, "") for item in whole.output]
        text_bytes = self._said.item_bytes + len(msgspec.json.encode(output))
        return Kept(
            body=msgspec.json.encode(whole),
            items=[*before.conversation, *items] if before else items,
            output=output,
            text_bytes=text_bytes + (before.text_bytes if before else 0),
        )

    @property
    def _id(self) -> str:
        return f"resp_{self._tally.request_id}"


class ResponseWhole(_Answer):
    """Says an answer once it is whole."""

    media_type = "application/json"

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        for _ in self._take(response):
            pass
        return b""

    def end(self) -> bytes:
        """Say all of it."""
        return msgspec.json.encode(self._whole())

    def fail(self, failure: Failure) -> bytes:
        """Say nothing more: nothing was said."""
        return responses_failures.refusal(failure)


class ResponseStream(_Answer):
    """Says an answer as it comes: each item's beginning, growth and end, numbered; all of it."""

    media_type = "text/event-stream"

    def __init__(self, said: Said) -> None:
        super().__init__(said)
        self._number = 0

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        events = [*self._take(response)]
        return self._told(events) if events else b""

    def end(self) -> bytes:
        """Say all of it once more."""
        whole = self._whole()
        return self._told([Event(f"response.{whole.status}", response=whole)])

    def fail(self, failure: Failure) -> bytes:
        """Say what went wrong, and that there is no answer."""
        failure = responses_failures.named(failure)
        code = _CODES.get(failure.status, "server_error")
        failed = msgspec.structs.replace(
            self._now(),
            status="failed",
            error=Problem(code, failure.message),
            output=self._writing.items,
        )
        problem = objects.refusal_of(failure).error
        told = Event("error", code=problem.code, message=problem.message, param=problem.param)
        return self._told([told, Event("response.failed", response=failed)])

    def _told(self, events: Sequence[Event]) -> bytes:
        if not self._number:
            now = self._now()
            begun = ("response.created", "response.in_progress")
            events = [*[Event(kind, response=now) for kind in begun], *events]
        return b"".join(map(self._one, events))

    def _one(self, event: Event) -> bytes:
        event.sequence_number = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))


def _is_cut(finished: generation_pb2.Finished) -> bool:
    return finished.reason == types_pb2.FINISH_REASON_LENGTH


def _usage_of(totals: Totals) -> Usage:
    return Usage(
        input_tokens=totals.prompt,
        input_tokens_details=InputDetails(totals.cached),
        output_tokens=totals.completion,
        output_tokens_details=objects.Reasoned(totals.reasoning),
        total_tokens=totals.prompt + totals.completion,
    )
