"""One answer on its way out: tokens in, Deltas and the Finished out.

Text, token ids, logprobs and counts are cut at the same token: the one that completed the
answer.
"""

from collections.abc import Iterator, Sequence

from bramley.common.wire import to_duration
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.engine.outputs import Seated, Token
from bramley.worker.request import FinishReason, TokenLogprob
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
        index: of the answer, in its request.
        is_begun: whether it has a token.
        finished: set by the last token, or when a stop string is met.
        token_ids: of the answer so far.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        index: int,
        detokenizer: Detokenizer,
        prompt: Sequence[int],
        cached: types_pb2.CachedTokens,
    ) -> None:
        self.index = index
        self.is_begun = False
        self.finished: generation_pb2.Finished | None = None
        self.token_ids: list[int] = []
        self._stream = request.stream
        self._min_tokens = request.stop.min_tokens
        self._include_stop = request.stop.include_stop
        self._top = request.logprobs.top
        self._detokenizer = detokenizer
        self._stops = StopStrings(request.stop.strings, include_stop=self._include_stop)
        self._prompt = prompt
        self._cached = cached
        self._seated: Seated | None = None
        self._first_s = 0.0
        self._told_tokens = 0
        self._untold: list[tuple[Token, str]] = []
        self._prompt_logprobs: Sequence[TokenLogprob] = ()

    def seated(self, seated: Seated) -> None:
        """Note when its work began; only the first time: later it goes on where it was."""
        self._seated = self._seated or seated

    def take_prompt(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Take the logprobs of the prompt's tokens, from the second on."""
        self._prompt_logprobs = logprobs

    def take(self, token: Token) -> None:
        """Take the next token; ``deltas`` tells it."""
        if self.finished is not None:
            return
        self.is_begun = True
        self.token_ids.append(token.token)
        self._first_s = self._first_s or token.at_s
        self._untold.append((token, self._text(token)))

    def deltas(self) -> Iterator[generation_pb2.Delta]:
        """Tell what was not told yet, in as few Deltas as are asked for."""
        untold, self._untold = self._untold, []
        size = self._stream.max_tokens_per_message or max(len(untold), 1)
        for start in range(0, len(untold), size):
            delta = self._delta(untold[start : start + size])
            if delta.text or delta.token_ids or delta.HasField("logprobs"):
                yield delta

    def _delta(self, pieces: Sequence[tuple[Token, str]]) -> generation_pb2.Delta:
        self._told_tokens += len(pieces)
        delta = generation_pb2.Delta(index=self.index, completion_tokens=self._told_tokens)
        if not self._stream.omit_text:
            delta.text = "".join([text for _, text in pieces])
        if not self._stream.omit_token_ids:
            delta.token_ids.extend([token.token for token, _ in pieces])
        if pieces[0][0].logprob is not None:
            values = [token.logprob for token, _ in pieces if token.logprob is not None]
            _pack(delta.logprobs, [token.token for token, _ in pieces], values, self._top)
        if self._prompt_logprobs:
            _pack(delta.prompt_logprobs, self._prompt[1:], self._prompt_logprobs, self._top)
            self._prompt_logprobs = ()
        return delta

    def _text(self, token: Token) -> str:
        finish = token.finish
        ends_turn = finish is not None and finish.stop_id is not None
        shown = ""
        if not ends_turn or self._shows_end(token):
            shown = self._push(self._detokenizer.push([token.token]))
        if finish is None and self._stops.matched is None:
            return shown
        if self._stops.matched is None:
            shown += self._push(self._detokenizer.finish())
            if self._stops.matched is None:
                shown += self._stops.flush()
        self.finished = self._finished(token)
        return shown

    def _shows_end(self, token: Token) -> bool:
        finish = token.finish
        return self._include_stop and finish is not None and finish.reason == "stop_sequence"

    def _push(self, text: str) -> str:
        return self._stops.push(text, may_end=len(self.token_ids) > self._min_tokens)

    def _finished(self, token: Token) -> generation_pb2.Finished:
        began_s = self._seated.at_s if self._seated else self._first_s
        finished = generation_pb2.Finished(
            index=self.index,
            usage=types_pb2.Usage(
                prompt_tokens=len(self._prompt),
                cached=self._cached,
                completion_tokens=len(self.token_ids),
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
        elif token.finish is not None:
            finished.reason = _REASONS[token.finish.reason]
            if token.finish.stop_id is not None:
                finished.stop_token_id = token.finish.stop_id
        return finished


def _pack(
    packed: types_pb2.Logprobs, ids: Sequence[int], values: Sequence[TokenLogprob], top: int
) -> None:
    packed.top = top
    packed.token_ids.extend(ids)
    packed.logprobs.extend([one.logprob for one in values])
    for one in values:
        packed.top_token_ids.extend(one.top_ids)
        packed.top_logprobs.extend(one.top_logprobs)
