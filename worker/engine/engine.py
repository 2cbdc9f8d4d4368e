"""The thread that owns MLX: schedule, execute, apply, forever.

Next in the walk: worker/engine/scheduler.py. Everything that touches MLX in this process
runs here: load, step, free. Others hand over submissions and cancellations, which take
effect between two steps, and get what a step produced in one delivery.
"""

import logging
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import mlx.core as mx

from bramley.common.errors import BramleyError, EngineFault, Overloaded
from bramley.common.logs import facts
from bramley.worker.engine.cohort import IDLE_BYTES_MAX
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import (
    Deliver,
    Failed,
    Output,
    Prefilled,
    Saved,
    Seated,
    Token,
)
from bramley.worker.engine.plan import StepPlan, StepResult
from bramley.worker.engine.scheduler import schedule
from bramley.worker.engine.slots import Slots
from bramley.worker.engine.stopping import finish
from bramley.worker.request import Phase, Request
from bramley.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

CLEAR_CACHE_EVERY = 256
EXIT_ENGINE_DIED = 70
# New tokens that make a save worth its cost, at the end of a prompt and of a request.
SAVE_PROMPT_FROM = 256
SAVE_END_FROM = 32


@dataclass(slots=True)
class Counters:
    """Totals that the engine thread writes and anyone may read."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    active_bytes: int = 0


class Engine:
    """Runs requests through one model. Public methods may be called from any thread.

    Args:
        load: makes the executor; runs on the engine's thread.
        settings: of the worker.
        deliver: takes what each step produced; runs on the engine's thread.
        waiting_max: requests that may wait here; the router's own bound is far below.
    """

    def __init__(
        self,
        load: Callable[[Slots], Executor],
        settings: WorkerSettings,
        deliver: Deliver,
        waiting_max: int = 1024,
    ) -> None:
        self.counters = Counters()
        self._load = load
        self._chunk_tokens = settings.prefill_chunk_tokens
        self._deliver = deliver
        self._waiting_max = waiting_max
        self._slots = Slots(settings.max_rows)
        self._waiting: deque[Request] = deque()
        self._mail = threading.Condition()
        self._submitted: list[Request] = []
        self._cancelled: set[str] = set()
        self._stopping = False
        self._executor: Executor
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Load the model, then serve, on a thread of its own."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            Overloaded: as many as may wait are waiting.
        """
        with self._mail:
            depth = len(self._submitted) + self.counters.waiting
            if depth >= self._waiting_max:
                raise Overloaded(
                    f"{depth} requests wait in the worker already", facts={"depth": depth}
                )
            self._submitted.append(request)
            self._mail.notify()

    def cancel(self, request_id: str) -> None:
        """End a request between two steps, without a word; an ended one is ignored."""
        with self._mail:
            self._cancelled.add(request_id)
            self._mail.notify()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; return whether it did in time."""
        with self._mail:
            self._stopping = True
            self._mail.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._executor = self._load(self._slots)
            while self._take_mail():
                self._step()
        except BaseException:
            # Without this thread the process can only refuse: its supervisor starts another.
            log.critical("the engine died", exc_info=True)
            logging.shutdown()
            os._exit(EXIT_ENGINE_DIED)

    def _take_mail(self) -> bool:
        """Take what was handed over, waiting while idle; return False to stop."""
        with self._mail:
            while not (self._submitted or self._cancelled or self._stopping or self._busy):
                self._rest()
                self._mail.wait()
            self._waiting.extend(self._submitted)
            self._submitted = []
            self._count()
            cancelled, self._cancelled = self._cancelled, set()
        if cancelled:
            for request in [*self._waiting, *self._slots.seated]:
                if request.id in cancelled:
                    self._end(request)
            self._count()
        return not self._stopping

    def _rest(self) -> None:
        """Check that nothing is left over, and give back what a long context took."""
        self._slots.check()
        cohort = self._executor.cohort
        assert not cohort.slots, repr(cohort)
        if cohort.nbytes > IDLE_BYTES_MAX:
            cohort.reset()
            mx.clear_cache()

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._slots.seated)

    def _step(self) -> None:
        free = self._slots.free
        next_in_line = list(islice(self._waiting, free))
        plan = schedule(self._slots.seated, next_in_line, free, self._chunk_tokens)
        if plan.is_empty:
            return
        outputs: list[Output] = []
        try:
            outputs += [self._seat(self._waiting[0]) for _ in range(plan.admit)]
            result = self._execute(plan)
        except Exception as error:
            log.exception("a step failed", extra=facts(cohort=self._executor.cohort))
            outputs += self._fail_all(error)
        else:
            outputs += self._apply(plan, result)
        self._count()
        if outputs:
            self._deliver(outputs)

    def _execute(self, plan: StepPlan) -> StepResult:
        started_s = time.monotonic()
        result = self._executor.run(plan)
        self.counters.steps += 1
        if plan.chunk is not None:
            self.counters.prompt_tokens += plan.chunk.tokens
            self.counters.prefill_s += time.monotonic() - started_s
        if self.counters.steps % CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()
        return result

    def _apply(self, plan: StepPlan, result: StepResult) -> Sequence[Output]:
        outputs: list[Output] = []
        if plan.chunk is not None:
            request = self._slots[plan.chunk.slot]
            if request.wants_progress:
                outputs.append(Prefilled(request.id, request.computed))
            if not request.prompt_left and request.saving:
                stop = min(request.saving.boundary, request.computed)
                outputs += self._save(request, stop, SAVE_PROMPT_FROM)
        now_s = time.monotonic()
        for slot, token in result.tokens.items():
            request = self._slots[slot]
            if slot in result.broken:
                self._end(request)
                outputs.append(Failed(request.id, EngineFault("the model gave no finite scores")))
                continue
            if not request.output:
                self.counters.prompt_tokens += 1
            request.output.append(token)
            self.counters.completion_tokens += 1
            ended = finish(request)
            if ended is not None:
                outputs += self._save(request, request.computed, SAVE_END_FROM)
                self._end(request)
            outputs.append(Token(request.id, token, now_s, ended))
        return outputs

    def _save(self, request: Request, stop: int, worth: int) -> Sequence[Output]:
        if request.saving is None or stop - request.saving.stored < worth:
            return ()
        sequence = [*request.prompt, *request.output][:stop]
        return [
            Saved(request.id, span, staged, array("I", sequence[: span.stop]).tobytes())
            for span, staged in self._executor.save(request, stop)
        ]

    def _seat(self, request: Request) -> Output:
        assert self._waiting.popleft() is request
        request.enter(Phase.SEATED)
        self._executor.cohort.join(self._slots.seat(request))
        began_s = time.monotonic()
        if request.restore is not None:
            self._executor.restore(request, request.restore)
            request.release()
        now_s = time.monotonic()
        return Seated(request.id, now_s, request.computed, now_s - began_s)

    def _end(self, request: Request) -> None:
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        else:
            filling = any(other.prompt_left for other in self._slots.seated if other is not request)
            self._executor.cohort.leave(request.slot, keep_last=filling)
            self._slots.leave(request)
        request.enter(Phase.ENDED)

    def _fail_all(self, error: Exception) -> Sequence[Output]:
        """End every seated request and start from empty state: what was written is unknown."""
        cause = (
            error
            if isinstance(error, BramleyError)
            else EngineFault(f"the step failed: {type(error).__name__}: {error}"[:500])
        )
        outputs = [Failed(request.id, cause) for request in self._slots.seated]
        for request in self._slots.seated:
            self._slots.leave(request)
            request.enter(Phase.ENDED)
        self._executor.cohort.reset()
        return outputs

    def _count(self) -> None:
        counters = self.counters
        counters.running = len(self._slots.seated)
        counters.waiting = len(self._waiting)
        counters.waiting_prompt_tokens = sum(len(request.prompt) for request in self._waiting)
        counters.active_bytes = mx.get_active_memory()
