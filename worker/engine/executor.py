"""Carries out forwards: chunks of prompts here, decode steps in decoding.py. Last of the walk.

The only place that runs the model. Runs on the engine's thread.
"""

import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from bramley.worker.cache.snapshot import part_bytes
from bramley.worker.embedding.pooling import pool
from bramley.worker.engine.cohort import IDLE_BYTES_MAX, Cohort
from bramley.worker.engine.costs import Costs
from bramley.worker.engine.decoding import Decoder
from bramley.worker.engine.replay import Replay
from bramley.worker.models.contract import Lane, LanguageModel
from bramley.worker.request import Request, TokenLogprob
from bramley.worker.sampling.logprobs import score

_WARM_TOKENS = 64


class Executor:
    """A model, and what makes the cohorts that run through it.

    Attributes:
        heads: query heads of a layer.
        costs: of forwards, as measured.
        waste_columns: padding that costs a forward as much as one more forward would.
        lane: how requests may share forwards.
    """

    def __init__(  # noqa: PLR0913 all that a model's way of running depends on
        self,
        model: LanguageModel,
        make_cohort: Callable[[], Cohort],
        *,
        heads: int = 1,
        waste_columns: int = 4096,
        keeps_graphs: bool = False,
        lane: Lane = Lane.BATCHED,
        body: LanguageModel | None = None,
    ) -> None:
        """Make an executor that is cold.

        Args:
            model: to be run.
            make_cohort: makes an empty one.
            heads: query heads of a layer.
            waste_columns: see above.
            keeps_graphs: whether decoding shall keep graphs, if the model's can be kept.
            lane: see above.
            body: gives the model's last hidden states; None where nothing can be embedded.
        """
        self._model = model
        self._body = body
        self._make_cohort = make_cohort
        self._decoding = Replay(model)
        self._keeps_graphs = keeps_graphs
        self.heads = heads
        self.waste_columns = waste_columns
        self.lane = lane
        self.costs = Costs()
        self._first: Cohort | None = None
        self._warm: Cohort | None = None

    def cohort(self) -> Cohort:
        """Make an empty cohort that knows all shapes, or take the one that is warm."""
        made, self._warm = self._warm or self._make_cohort(), None
        return self._resembling(made)

    def cohort_aside(self) -> Cohort:
        """Make an empty cohort for rows that are nobody's seats."""
        return self._resembling(self._make_cohort())

    def _resembling(self, made: Cohort) -> Cohort:
        self._first = self._first or made
        for layer, known in zip(made.layers, self._first.layers, strict=True):
            layer.resemble(known)
        return made

    def decoder(self, cohort: Cohort) -> Decoder:
        """Make what decodes a cohort's rows."""
        return Decoder(self._decoding, cohort)

    def warm_up(self, cohort: Cohort, columns_max: int) -> None:
        """Run both shapes of forward, so that no request pays for first use, and time them.

        Args:
            cohort: empty, and empty again afterwards.
            columns_max: room of the first row at most; memory is slowest when it is new, so
                a row is made as long as an idle engine may keep it anyway.
        """
        cohort.join(0)
        tokens = min(_WARM_TOKENS, columns_max)
        # A GPU compiles at first use: there it is the second time that counts.
        times = 2 if mx.default_device().type == mx.DeviceType.gpu else 1
        seconds: dict[int, float] = {}
        for columns in (tokens, 1) * times:
            started_s = time.monotonic()
            cohort.empty(0)
            ids = mx.zeros((1, columns), mx.int32)
            with cohort.forward(self._model, ids, range(1)) as logits:
                cohort.evaluate(logits)
            seconds[columns] = time.monotonic() - started_s
        self.costs.forward_s = seconds[1]
        if self._keeps_graphs:
            self._decoding.check(cohort)
        own_s = seconds[tokens] - seconds[1]
        self.costs.token_s = max(own_s, seconds[tokens] / 4) / tokens
        cohort.leave(0)
        token_bytes = part_bytes(cohort.layers, 2) - part_bytes(cohort.layers, 1)
        columns = min(columns_max, IDLE_BYTES_MAX // max(token_bytes, 1))
        for layer in cohort.layers:
            layer.reserve(1, columns)
        self._first = self._warm = cohort

    def prefill(self, cohort: Cohort, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        """Compute the next so many tokens of each request's sequence, in one forward.

        A forward that raises leaves every length as it was (law 12 of the state contract).
        """
        rows = cohort.line_up([request.slot for request in requests])
        columns = max(tokens)
        ids = [
            [*new, *[0] * (columns - len(new))]
            for request, count in zip(requests, tokens, strict=True)
            for new in [request.tokens(request.computed, request.computed + count)]
        ]
        first, scored = requests[0], ()
        with cohort.forward(self._model, mx.array(ids), rows, tokens) as logits:
            if first.wants_prompt_logprobs:
                scored = self._prompt_logprobs(logits[0], first)
            cohort.evaluate()  # the state alone: nobody needs these logits
        first.prompt_logprobs += scored
        for request, count in zip(requests, tokens, strict=True):
            request.computed += count

    def embed(self, cohort: Cohort, texts: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
        """Compute the next tokens of every row of a cohort, in one forward.

        Returns:
            Of the tokens' hidden states each row's sum and its last one, as ``pool`` gives them.
        """
        assert self._body is not None, "what cannot be embedded is refused before"
        counts = [len(text) for text in texts]
        ids = mx.array([[*text, *[0] * (max(counts) - len(text))] for text in texts])
        with cohort.forward(self._body, ids, range(len(texts)), counts) as hidden:
            sums, lasts = pool(hidden, counts)
            cohort.evaluate(sums, lasts)
        return sums, lasts

    def _prompt_logprobs(self, logits: mx.array, request: Request) -> Sequence[TokenLogprob]:
        asked = request.logprobs
        assert asked is not None
        first = request.computed + 1
        targets = mx.array(request.tokens(first, first + logits.shape[0]))
        scores = score(logits, targets, asked.top)
        mx.eval(scores.arrays())
        return list(scores.read())
