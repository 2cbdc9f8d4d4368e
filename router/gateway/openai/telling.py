"""OpenAI's completions of both kinds: how an answer is said, whole or as a stream (pure)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.gather import Tally, Text, Whole
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.objects import Told, Usage

MaybeUsage = Usage | msgspec.UnsetType | None
Part = TypeVar("Part", bound=msgspec.Struct)


class WholeAnswer(ABC):
    """Says an answer once it is whole."""

    media_type = "application/json"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._whole = Whole(told.answers, told.prompts)

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._whole.add(response)
        return b""

    def end(self) -> bytes:
        """Say all of it."""
        tally, texts = self._whole.tally, self._whole.texts()
        usage = objects.usage_of(tally.totals)
        return msgspec.json.encode(self._object(tally.request_id, texts, usage))

    def fail(self, failure: Failure) -> bytes:
        """Say nothing more: nothing was said."""
        return objects.refusal(failure)

    @abstractmethod
    def _object(
        self, request_id: str, texts: Iterable[tuple[int, Text]], usage: Usage
    ) -> msgspec.Struct:
        """Make what is said of all answers."""


class StreamAnswer(ABC, Generic[Part]):
    """Says an answer as it comes: chunks of one part each; counts; DONE."""

    media_type = "text/event-stream"

    def __init__(self, told: Told) -> None:
        self._told = told
        self._tally = Tally(told.answers, told.prompts)

    def add(self, response: router_pb2.GenerateResponse) -> bytes:
        """Take the next response."""
        self._tally.add(response)
        match response.WhichOneof("event"):
            case "delta":
                parts = self._delta(response.delta)
            case "finished":
                parts = self._finished(response.finished)
            case _:
                return b""
        usage = None if self._told.tells_usage else msgspec.UNSET
        return b"".join([self._event([part], usage) for part in parts])

    def end(self) -> bytes:
        """Say the counts, where they were asked for, and that this is all."""
        self._tally.check_ended()
        if not self._told.tells_usage:
            return objects.DONE
        return self._event([], objects.usage_of(self._tally.totals)) + objects.DONE

    def fail(self, failure: Failure) -> bytes:
        """Say what went wrong, and nothing behind it."""
        return objects.event(objects.refusal_of(failure))

    def _event(self, parts: Sequence[Part], usage: MaybeUsage) -> bytes:
        return objects.event(self._chunk(self._tally.request_id, parts, usage))

    @abstractmethod
    def _delta(self, delta: generation_pb2.Delta) -> Iterable[Part]:
        """Make what is said of a Delta."""

    @abstractmethod
    def _finished(self, finished: generation_pb2.Finished) -> Iterable[Part]:
        """Make what is said of an answer's end."""

    @abstractmethod
    def _chunk(self, request_id: str, parts: Sequence[Part], usage: MaybeUsage) -> msgspec.Struct:
        """Make an event."""
