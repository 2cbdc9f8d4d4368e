"""Carries out one plan: rows, forward, sample, tokens. Last file of the walk.

The only place that evaluates the model. Runs on the engine's thread.
"""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from bramley.worker.cache.saved import Restore, Staged
from bramley.worker.cache.snapshot import Span, copy_in, copy_out, part_bytes, span_bytes, spans
from bramley.worker.engine.cohort import IDLE_BYTES_MAX, Cohort
from bramley.worker.engine.plan import Chunk, StepPlan, StepResult
from bramley.worker.engine.slots import Slots
from bramley.worker.models.contract import LanguageModel
from bramley.worker.request import Request
from bramley.worker.sampling.sampler import Draw, sample


class Executor:
    """A model, the cohort that runs through it, and the seats that say what each row reads.

    Attributes:
        cohort: changed by the engine between steps, and by no one within.
    """

    def __init__(self, model: LanguageModel, cohort: Cohort, slots: Slots) -> None:
        self._model = model
        self.cohort = cohort
        self._slots = slots

    def warm_up(self, columns_max: int) -> None:
        """Run both shapes of forward once, so that no request pays for first use.

        Args:
            columns_max: room of the first row at most; memory is slowest when it is new, so
                a row is made as long as an idle engine may keep it anyway.
        """
        table = self.cohort.table
        self.cohort.join(0)
        for columns in (2, 1):
            table.begin(range(1), columns)
            logits = self._model(mx.zeros((1, columns), mx.int32), cache=self.cohort.layers)
            table.commit()
            self.cohort.evaluate(logits)
        self.cohort.leave(0, keep_last=False)
        token_bytes = part_bytes(self.cohort.layers, 1)
        columns = min(columns_max, IDLE_BYTES_MAX // token_bytes)
        for layer in self.cohort.layers:
            layer.reserve(1, columns)

    def restore(self, request: Request, restore: Restore) -> None:
        """Copy a stored prefix into the request's row, which is empty.

        A prefix whose memory was taken back meanwhile is not used: the row stays empty.
        """
        cohort, row = self.cohort, self.cohort.row(request.slot)
        for part in restore.parts:
            copy_in(cohort.layers, row, part.first, part.tokens, part.memory, part.held)
        cohort.table.lengths[row] = request.computed = restore.tokens
        if not restore.is_held():
            for layer in cohort.layers:
                layer.clear_row(row)
            cohort.table.lengths[row] = request.computed = 0

    def save(self, request: Request, stop: int) -> list[tuple[Span, Staged]]:
        """Copy what is not stored yet of the row's first ``stop`` tokens into staging.

        Returns:
            Each span that there was room for; none comes after one that was refused.
        """
        saving, layers = request.saving, self.cohort.layers
        assert saving is not None
        taken: list[tuple[Span, Staged]] = []
        for span in spans(saving.stored, stop, saving.extent_blocks):
            staged = saving.stage(span_bytes(layers, span))
            if staged is None:
                break
            copy_out(layers, self.cohort.row(request.slot), span, staged.view)
            saving.stored = span.stop
            taken.append((span, staged))
        return taken

    def run(self, plan: StepPlan) -> StepResult:
        """Compute a plan's chunk, then its decode rows.

        A forward that raises leaves every length as it was (law 12 of the state contract).

        Returns:
            One token for each slot of ``plan.decode``.
        """
        if plan.chunk is not None:
            self._prefill(plan.chunk)
        if not plan.decode:
            return StepResult()
        return self._decode([self._slots[slot] for slot in plan.decode])

    def _prefill(self, chunk: Chunk) -> None:
        request, table = self._slots[chunk.slot], self.cohort.table
        row = self.cohort.row(chunk.slot)
        tokens = request.prompt[request.computed : request.computed + chunk.tokens]
        table.begin(range(row, row + 1), chunk.tokens)
        self._model(mx.array([list(tokens)]), cache=self.cohort.layers)
        table.commit()
        self.cohort.evaluate()  # the state alone: nobody needs these logits
        request.computed += chunk.tokens

    def _decode(self, requests: Sequence[Request]) -> StepResult:
        table = self.cohort.table
        rows = {request.slot: self.cohort.row(request.slot) for request in requests}
        requests = sorted(requests, key=lambda request: rows[request.slot])
        assert [rows[request.slot] for request in requests] == list(range(len(requests)))
        table.begin(range(len(requests)), 1)
        inputs = mx.array([[request.next_input] for request in requests])
        logits = self._model(inputs, cache=self.cohort.layers)[:, -1, :]
        table.commit()
        draws = [Draw(request.sampling, request.next_position) for request in requests]
        tokens = sample(logits, draws)
        broken = mx.isnan(mx.sum(logits, axis=-1))
        self.cohort.evaluate(tokens, broken)
        for request in requests:
            request.computed += 1
        order = [request.slot for request in requests]
        drawn = cast("list[int]", tokens.tolist())
        flags = cast("list[bool]", broken.tolist())
        return StepResult(
            tokens=dict(zip(order, drawn, strict=True)),
            broken=frozenset(slot for slot, flag in zip(order, flags, strict=True) if flag),
        )
