"""An engine in this process: requests in, what became of them out."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from bramley.common.errors import BramleyError
from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.opaque import OpaqueState
from bramley.worker.cache.saved import Restore, Saving
from bramley.worker.cache.table import RowTable
from bramley.worker.embedding.job import EmbedJob
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import (
    Embedded,
    Failed,
    Output,
    Preempted,
    Prefilled,
    PromptLogprobs,
    Saved,
    Seated,
    Token,
)
from bramley.worker.engine.stopping import Finish
from bramley.worker.models.contract import Lane, LanguageModel, LayerCache
from bramley.worker.request import LogprobRule, Priority, Request, StopRule, TokenLogprob
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.settings import WorkerSettings
from support.blas import BLAS

PATIENCE_S = 60.0


@dataclass(slots=True)
class Outcome:
    """What the engine said of one request."""

    tokens: list[int] = field(default_factory=list[int])
    progress: list[int] = field(default_factory=list[int])
    finish: Finish | None = None
    error: BramleyError | None = None
    saved: list[Saved] = field(default_factory=list[Saved])
    restored: int = 0
    parked: int = 0
    preempted: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    values: Sequence[bytes] = ()


class More(TypedDict, total=False):
    """What else a request may say."""

    sampling: SamplingParams
    wants_progress: bool
    priority: Priority
    scope: bytes
    leader: Request | None
    logprobs: LogprobRule | None
    restore: Restore | None
    saving: Saving | None


def request(
    name: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 16,
    eos: frozenset[int] = frozenset(),
    min_tokens: int = 0,
    **more: Unpack[More],
) -> Request:
    """Make a request: greedy unless told otherwise."""
    more.setdefault("sampling", SamplingParams())
    stop = StopRule(max_tokens=max_tokens, min_tokens=min_tokens, end_ids=eos)
    return Request(id=name, prompt=prompt, stop=stop, **more)


FULL = LayerCache(kind="full")


def oracle(
    model: LanguageModel, one: Request, *, layers: Sequence[LayerCache] = (FULL, FULL)
) -> list[int]:
    """ORACLE: the same request alone, cold, in a fresh engine; its tokens."""
    engine = InProcessEngine(model, layers=layers)
    try:
        return engine.run(one)[one.id]
    finally:
        engine.close()


class InProcessEngine:
    """Runs a model's engine on its own thread.

    With a ``graph_step`` decoding keeps its graphs, if it can. A model in lane OWN runs on what
    ``own_caches`` makes. ``at_step`` maps a step's number, counted from the first delivery on, to
    what is to be done when that step has been delivered: joins and cancels at exact places.
    """

    def __init__(  # noqa: PLR0913 all that tests choose
        self,
        model: LanguageModel,
        *,
        layers: Sequence[LayerCache] = (FULL, FULL),
        waiting_max: int = 1000,
        chunk_tokens: int = 64,
        waste_columns: int = 1 << 20,
        graph_step: int = 0,
        lane: Lane = Lane.BATCHED,
        own_caches: Callable[[], Sequence[object]] | None = None,
        body: LanguageModel | None = None,
        **settings: Any,
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.saved: list[Saved] = []  # of parked rows as well
        self.on_saved: Callable[[Saved], object] = lambda _: None
        self.cohorts: list[Cohort] = []
        self.executor: Executor
        self.at_step: dict[int, Callable[[], None]] = {}
        self.step = 0
        self._changed = threading.Condition()

        def make_cohort() -> Cohort:
            table = RowTable(sum_panel=BLAS.sum_panel, graph_step=max(graph_step, 1))
            if lane is Lane.OWN:
                assert own_caches is not None
                own = OpaqueState(table, own_caches)
                self.cohorts.append(Cohort(table, [own], lambda: own.caches))
                return self.cohorts[-1]
            states = build_states(table, layers)
            caches = model_caches(states, layers)
            self.cohorts.append(Cohort(table, states, lambda: caches))
            return self.cohorts[-1]

        def load() -> Executor:
            self.executor = Executor(
                model,
                make_cohort,
                waste_columns=waste_columns,
                keeps_graphs=graph_step > 0,
                lane=lane,
                body=body,
            )
            if graph_step or settings.get("state_bytes") is not None:
                self.executor.warm_up(make_cohort(), 1)  # tells what a token takes
            return self.executor

        worker = WorkerSettings(path="", prefill_chunk_tokens=chunk_tokens, **settings)
        self.engine = Engine(load, worker, self._deliver, waiting_max)
        self.engine.start()

    @property
    def cohort(self) -> Cohort:
        """The first cohort, which is the only one unless lengths differ much."""
        return self.cohorts[0]

    def submit(self, *requests: Request) -> None:
        """Hand requests over; with no step in between."""
        for one in requests:
            self.outcomes[one.id] = Outcome()
        self.engine.submit(*requests)

    def embed(self, *jobs: EmbedJob) -> None:
        """Hand texts over."""
        for job in jobs:
            self.outcomes[job.id] = Outcome()
            self.engine.embed(job)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on ``outcomes`` holds."""
        give_up_s = time.monotonic() + PATIENCE_S
        with self._changed:
            while not condition():
                assert time.monotonic() < give_up_s, self.outcomes
                self._changed.wait(0.01)  # a cancel is not told of

    def finished(self, *names: str) -> dict[str, Outcome]:
        """Wait until the named requests, or all, have ended."""

        def ended() -> bool:
            wanted = [self.outcomes[name] for name in names or self.outcomes]
            return all(one.finish or one.error or one.values for one in wanted)

        self.until(ended)
        return {name: self.outcomes[name] for name in names or self.outcomes}

    def idle(self) -> None:
        """Wait until nobody sits or waits, and every cancel was taken."""
        self.until(lambda: self.engine.is_idle)

    def run(self, *requests: Request) -> dict[str, list[int]]:
        """Run requests to their ends, together; their tokens."""
        self.submit(*requests)
        outcomes = self.finished(*(one.id for one in requests))
        assert not [one.error for one in outcomes.values() if one.error is not None]
        return {name: one.tokens for name, one in outcomes.items()}

    def close(self) -> None:
        """End the engine's thread."""
        assert self.engine.stop(PATIENCE_S)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        with self._changed:
            for output in outputs:
                if isinstance(output, Saved):
                    self.saved.append(output)
                    self.on_saved(output)
                if output.request_id:
                    self._note(self.outcomes[output.request_id], output)
            self._changed.notify_all()
        self.step += 1
        if action := self.at_step.pop(self.step, None):
            action()

    def _note(self, outcome: Outcome, output: Output) -> None:
        match output:
            case Token():
                outcome.tokens.append(output.token)
                outcome.finish = output.finish
                if output.logprob is not None:
                    outcome.logprobs.append(output.logprob)
            case Prefilled():
                outcome.progress.append(output.tokens)
            case Embedded():
                outcome.values = output.values
            case Failed():
                outcome.error = output.error
            case Saved():
                outcome.saved.append(output)
            case PromptLogprobs():
                outcome.prompt_logprobs = output.logprobs
            case Preempted():
                outcome.preempted += 1
                self.engine.submit(output.request)
            case Seated():
                outcome.restored, outcome.parked = output.restored, output.parked
