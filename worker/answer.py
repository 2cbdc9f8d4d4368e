"""One answer on its way out: tokens in, Deltas and the Finished out.

Text, token ids, logprobs and counts are cut at the same token: the one that completed the
answer. Stop strings are matched on the content alone. Where an answer may call one tool and no
more, it ends where a second call would begin. Of an answer that is cut nothing is told that more
text could have made into something else, as what may be the beginning of a marker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from bramley.common.together import may_call_many
from bramley.common.wire import to_duration
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.deltas import Packer, Piece, TokenBytes, pack_logprobs
from bramley.worker.engine.outputs import Seated, Token
from bramley.worker.reading.events import (
    AnswerReader,
    CallEnd,
    CallStart,
    Event,
    PlainReader,
    Text,
)
from bramley.worker.request import FinishReason, TokenLogprob
from bramley.worker.text.detokenizer import Detokenizer
from bramley.worker.text.stop_strings import StopStrings

_REASONS: dict[FinishReason, types_pb2.FinishReason.ValueType] = {
    "stop": types_pb2.FINISH_REASON_STOP,
    "stop_sequence": types_pb2.FINISH_REASON_STOP_SEQUENCE,
    "length": types_pb2.FINISH_REASON_LENGTH,
    "grammar": types_pb2.FINISH_REASON_GRAMMAR_COMPLETE,
}
# Ends that the model itself, or its grammar, made: what it began is all that there will be of it.
_OWN_REASONS: frozenset[FinishReason] = frozenset({"stop", "grammar"})
# The same as they are told; one that called a tool is told as such.
_OWN_ENDS = {types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_GRAMMAR_COMPLETE}


@dataclass(frozen=True, slots=True)
class Reading:
    """How one answer is read.

    Attributes:
        shown: ids whose text the reader needs, though they end the turn.
        token_bytes: what each id stands for, by itself.
    """

    detokenizer: Detokenizer
    reader: AnswerReader
    shown: frozenset[int] = frozenset()
    token_bytes: TokenBytes | None = None


class Answer:
    """Composes one index's messages.

    What the engine still makes of the request after its end is not part of the answer.

    Attributes:
        index: of the answer, in its request.
        is_begun: whether it has a token.
        finished: set by the last token, or where it is cut.
        is_cut: whether it ended where the engine did not end it: at a stop string, or before a
            call too many.
        token_ids: of the answer so far.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        index: int,
        reading: Reading,
        prompt: Sequence[int],
        cached: types_pb2.CachedTokens,
    ) -> None:
        self.index = index
        self.is_begun = False
        self.finished: generation_pb2.Finished | None = None
        self.is_cut = False
        self.token_ids: list[int] = []
        self._size_max = request.stream.max_tokens_per_message
        self._min_tokens = request.stop.min_tokens
        self._include_stop = request.stop.include_stop
        self._top = request.logprobs.top
        self._reading = reading
        self._stops = StopStrings(request.stop.strings, include_stop=self._include_stop)
        self._token_bytes = reading.token_bytes if request.logprobs.bytes else None
        self._packer = Packer(index, request.stream, self._top, self._token_bytes)
        self._prompt = prompt
        self._cached = cached
        self._seated: Seated | None = None
        self._first_s = 0.0
        self._reasoning_tokens = 0
        self._has_called = False
        self._calls_max = inf if may_call_many(request) else 1
        self._is_over = False  # what is said from here on is no part of it
        # Where it makes no difference which token said what, many are read at once.
        self._is_plain = not (request.stop.strings or self._size_max) and isinstance(
            reading.reader, PlainReader
        )
        self._unread: list[Token] = []
        self._untold: list[Piece] = []
        self._prompt_logprobs: Sequence[TokenLogprob] = ()

    def seated(self, seated: Seated) -> None:
        """Note when its work began; only the first time: later it goes on where it was."""
        self._seated = self._seated or seated

    def take_prompt(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Take the logprobs of the prompt's tokens, from the second on."""
        self._prompt_logprobs = logprobs

    def take(self, token: Token) -> None:
        """Take the next token; ``read`` reads it."""
        self.is_begun = True
        self._first_s = self._first_s or token.at_s
        self._unread.append(token)

    def read(self) -> bool:
        """Read what was taken, for ``deltas`` to tell; what follows the end is left out.

        Returns:
            Whether the answer is complete now, and was not before.
        """
        unread, self._unread = self._unread, []
        if not unread or self.finished is not None:
            return False
        if self._is_plain:
            ends = unread[-1].finish is not None
            self._read_together(unread[: len(unread) - ends])
            unread = unread[len(unread) - ends :]
        for token in unread:
            self.token_ids.append(token.token)
            events = self._read(token)
            self._untold.append(Piece([token], events, self._reasoning_tokens))
            if self.finished is not None:
                self.is_cut = token.finish is None
                return True
        return False

    def _read_together(self, tokens: Sequence[Token]) -> None:
        if not tokens:
            return
        ids = [token.token for token in tokens]
        self.token_ids.extend(ids)
        events = self._reading.reader.push(self._reading.detokenizer.push(ids))
        self._untold.append(Piece(tokens, events, self._reasoning_tokens))

    def deltas(self) -> Iterator[generation_pb2.Delta]:
        """Tell what was not told yet, in as few Deltas as are asked for."""
        untold, self._untold = self._untold, []
        size = self._size_max or max(len(untold), 1)
        for start in range(0, len(untold), size):
            for delta in self._packer.pack(untold[start : start + size]):
                self._add_prompt(delta)
                yield delta

    def _add_prompt(self, delta: generation_pb2.Delta) -> None:
        if self._prompt_logprobs:
            values, self._prompt_logprobs = self._prompt_logprobs, ()
            ids = self._prompt[1:]
            pack_logprobs(delta.prompt_logprobs, ids, values, self._top, self._token_bytes)

    def _read(self, token: Token) -> Sequence[Event]:
        finish, reading = token.finish, self._reading
        ends_turn = finish is not None and finish.stop_id is not None
        was_reasoning = reading.reader.is_reasoning
        events: list[Event] = []
        if not ends_turn or self._shows_end(token):
            text = reading.detokenizer.push([token.token])
            events += self._said(reading.reader.push(text))
        self._reasoning_tokens += was_reasoning or reading.reader.is_reasoning
        if finish is None and not self._is_over:
            return events
        if not self._is_over:
            events += self._said(reading.reader.push(reading.detokenizer.finish()))
            if finish is not None and finish.reason in _OWN_REASONS:
                events += self._said(reading.reader.finish())
            if not self._is_over:
                events += _texts(self._stops.flush())
        self.finished = self._finished(token)
        return events

    def _shows_end(self, token: Token) -> bool:
        finish = token.finish
        is_wanted = self._include_stop and finish is not None and finish.reason == "stop_sequence"
        return is_wanted or token.token in self._reading.shown

    def _said(self, events: Sequence[Event]) -> Iterator[Event]:
        """Leave out what is cut off."""
        may_end = len(self.token_ids) > self._min_tokens
        for event in events:
            if self._is_over:
                return
            if isinstance(event, Text):
                yield from _texts(self._stops.push(event.text, may_end=may_end))
                self._is_over = self._stops.matched is not None
                continue
            yield from _texts(self._stops.flush())
            if isinstance(event, CallStart) and event.index >= self._calls_max:
                self._is_over = True
                return
            self._has_called |= isinstance(event, CallEnd) and not event.is_malformed
            yield event

    def _finished(self, token: Token) -> generation_pb2.Finished:
        began_s = self._seated.at_s if self._seated else self._first_s
        finished = generation_pb2.Finished(
            index=self.index,
            usage=types_pb2.Usage(
                prompt_tokens=len(self._prompt),
                cached=self._cached,
                completion_tokens=len(self.token_ids),
                reasoning_tokens=self._reasoning_tokens,
            ),
            timings=types_pb2.Timings(
                restore=to_duration(self._seated.restore_s if self._seated else 0.0),
                prefill=to_duration(self._first_s - began_s),
                decode=to_duration(token.at_s - self._first_s),
            ),
        )
        if self._stops.matched is not None:
            finished.reason = types_pb2.FINISH_REASON_STOP_SEQUENCE
            finished.stop_string = self._stops.matched
        elif self._is_over or token.finish is None:
            finished.reason = types_pb2.FINISH_REASON_STOP
        else:
            finished.reason = _REASONS[token.finish.reason]
            if token.finish.stop_id is not None:
                finished.stop_token_id = token.finish.stop_id
        if self._has_called and finished.reason in _OWN_ENDS:
            finished.reason = types_pb2.FINISH_REASON_TOOL_CALLS
        return finished


def _texts(text: str) -> Sequence[Event]:
    return [Text(text)] if text else []
