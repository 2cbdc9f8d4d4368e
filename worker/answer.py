"""One answer on its way out: tokens in, Deltas and the Finished out.

Text, token ids and counts are cut at the same token: the one that completed the answer.
"""

from collections.abc import Iterator, Sequence

from bramley.common.wire import to_duration
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.engine.outputs import Seated, Token
from bramley.worker.request import FinishReason
from bramley.worker.text.detokenizer import Detokenizer
from bramley.worker.text.stop_strings import StopStrings

_REASONS: dict[FinishReason, types_pb2.FinishReason.ValueType] = {
    "stop": types_pb2.FINISH_REASON_STOP,
    "stop_sequence": types_pb2.FINISH_REASON_STOP_SEQUENCE,
    "length": types_pb2.FINISH_REASON_LENGTH,
}


class Answer:
    """Composes one index's messages.

    What the engine still makes of the request after its end is not part of the answer.

    Attributes:
        cached: prompt tokens that were restored, by tier.
        finished: set by the last token, or when a stop string is met.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        detokenizer: Detokenizer,
        prompt_tokens: int,
    ) -> None:
        self._stream = request.stream
        self._include_stop = request.stop.include_stop
        self._detokenizer = detokenizer
        self._stops = StopStrings(request.stop.strings, include_stop=self._include_stop)
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._seated = Seated("", 0.0)
        self._first_s = 0.0
        self.cached = types_pb2.CachedTokens()
        self.finished: generation_pb2.Finished | None = None

    def seated(self, seated: Seated) -> None:
        """Note when the prefill began, and after how many restored tokens."""
        self._seated = seated
        if not seated.restored:
            self.cached.Clear()

    def deltas(self, tokens: Sequence[Token]) -> Iterator[generation_pb2.Delta]:
        """Take tokens, up to the one that ends the answer, in as few Deltas as are asked for."""
        size = self._stream.max_tokens_per_message or max(len(tokens), 1)
        for start in range(0, len(tokens), size):
            if self.finished is not None:
                return
            delta = self._delta(tokens[start : start + size])
            if delta.text or delta.token_ids:
                yield delta

    def _delta(self, tokens: Sequence[Token]) -> generation_pb2.Delta:
        delta = generation_pb2.Delta()
        text: list[str] = []
        for token in tokens:
            self._tokens += 1
            self._first_s = self._first_s or token.at_s
            delta.token_ids.append(token.token)
            text.append(self._text(token))
            if self.finished is not None:
                break
        delta.completion_tokens = self._tokens
        if not self._stream.omit_text:
            delta.text = "".join(text)
        if self._stream.omit_token_ids:
            delta.ClearField("token_ids")
        return delta

    def _text(self, token: Token) -> str:
        finish = token.finish
        ends_turn = finish is not None and finish.stop_id is not None
        shown = "" if ends_turn and not self._shows_end(token) else self._push(token)
        if finish is None and self._stops.matched is None:
            return shown
        if self._stops.matched is None:
            shown += self._stops.push(self._detokenizer.finish())
            if self._stops.matched is None:
                shown += self._stops.flush()
        self.finished = self._finished(token)
        return shown

    def _shows_end(self, token: Token) -> bool:
        finish = token.finish
        return self._include_stop and finish is not None and finish.reason == "stop_sequence"

    def _push(self, token: Token) -> str:
        return self._stops.push(self._detokenizer.push([token.token]))

    def _finished(self, token: Token) -> generation_pb2.Finished:
        finished = generation_pb2.Finished(
            usage=types_pb2.Usage(
                prompt_tokens=self._prompt_tokens,
                cached=self.cached,
                completion_tokens=self._tokens,
            ),
            timings=types_pb2.Timings(
                restore=to_duration(self._seated.restore_s),
                prefill=to_duration(self._first_s - self._seated.at_s),
                decode=to_duration(token.at_s - self._first_s),
            ),
            lane=types_pb2.LANE_BATCHED,
        )
        if self._stops.matched is not None:
            finished.reason = types_pb2.FINISH_REASON_STOP_SEQUENCE
            finished.stop_string = self._stops.matched
        elif token.finish is not None:
            finished.reason = _REASONS[token.finish.reason]
            if token.finish.stop_id is not None:
                finished.stop_token_id = token.finish.stop_id
        return finished
