"""The thread that owns MLX: one step after the other, and mail between two steps.

Next in the walk: worker/engine/steps.py. Everything that touches MLX in this process
runs here: load, step, free. Others hand over submissions and cancellations, which take
effect between two steps, and get what a step produced in one delivery.
"""

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from bramley.common.errors import Overloaded
from bramley.common.logs import facts
from bramley.worker.embedding.job import EmbedJob
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Deliver, Saved
from bramley.worker.engine.steps import Steps
from bramley.worker.engine.watchdog import watch
from bramley.worker.owed import Outcome
from bramley.worker.request import Request
from bramley.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 70


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
        load: Callable[[], Executor],
        settings: WorkerSettings,
        deliver: Deliver,
        waiting_max: int = 1024,
    ) -> None:
        self.counters = Counters()
        self._load = load
        self._settings = settings
        self._deliver = deliver
        self._waiting_max = waiting_max
        self._mail = threading.Condition()
        self._submitted: list[Request] = []
        self._jobs: list[EmbedJob] = []
        self._cancelled: set[str] = set()
        self._settled: list[tuple[Saved, Outcome]] = []
        self._hurried: list[_Hurry] = []
        self._hurries: list[_Hurry] = []  # of the engine's thread
        self._stopping = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Load the model, then serve, on a thread of its own."""
        self._thread.start()
        watch(self.counters, self._settings.stall_timeout_s, self._over)

    def submit(self, *requests: Request) -> None:
        """Queue requests, all of them or none.

        Raises:
            Overloaded: as many as may wait are waiting.
        """
        now_s = time.monotonic()
        with self._mail:
            depth = len(self._submitted) + self.counters.waiting
            # One that lost its seat has arrived before, and is let in again.
            if depth + len(requests) > self._waiting_max and not requests[0].arrived_s:
                raise Overloaded(
                    f"{depth} requests wait in the worker already", facts={"depth": depth}
                )
            for request in requests:
                request.arrived_s = request.arrived_s or now_s
            self._submitted += requests
            self._mail.notify()

    def embed(self, job: EmbedJob) -> None:
        """Queue texts to be embedded."""
        with self._mail:
            self._jobs.append(job)
            self._mail.notify()

    def cancel(self, request_id: str) -> None:
        """End a request or job between two steps, without a word; an ended one is ignored."""
        with self._mail:
            self._cancelled.add(request_id)
            self._mail.notify()

    def settle(self, saved: Saved, outcome: Outcome) -> None:
        """Tell what became of a span that was handed over."""
        with self._mail:
            self._settled.append((saved, outcome))
            self._mail.notify()

    def save_owed(self, until_s: float, done: Callable[[], object]) -> None:
        """Save what rows owe between steps as well, until nothing more can be done.

        Args:
            until_s: when to do so no longer, on the monotonic clock.
            done: called on the engine's thread.
        """
        with self._mail:
            self._hurried.append(_Hurry(until_s, done))
            self._mail.notify()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; return whether it did in time."""
        with self._mail:
            self._stopping = True
            self._mail.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs, and nothing is still to be taken."""
        with self._mail:
            return not (self._mailed or self.counters.waiting or self.counters.running)

    @property
    def _mailed(self) -> bool:
        return bool(self._submitted or self._jobs or self._cancelled or self._settled)

    def _run(self) -> None:
        try:
            steps = Steps(self._load(), self._settings, self.counters, self._deliver)
            while self._take_mail(steps):
                self.counters.step_began_s = time.monotonic()
                if steps.is_busy:
                    steps.run()
                if self._hurries or not steps.is_busy:
                    steps.save_owed()
            self._over.set()
            del steps
            _free()
        except BaseException:
            # Without this thread the process can only refuse: its supervisor starts another.
            log.critical("the engine died", exc_info=True)
            logging.shutdown()
            os._exit(EXIT_ENGINE_DIED)

    def _take_mail(self, steps: Steps) -> bool:
        """Take what was handed over, waiting while idle; return False to stop."""
        self._hurry(steps)
        if self.is_idle and not steps.is_busy:
            self.counters.step_began_s = 0.0
            steps.rest()
        with self._mail:
            while not (self._mailed or self._stopping or steps.is_busy):
                wait_s = self._wait_s(steps)
                if wait_s is not None and wait_s <= 0:
                    break
                if self._hurried:
                    break
                self._mail.wait(wait_s)
            if self._submitted and not steps.is_busy:
                gather_s = steps.gather_s(self._submitted)
                self._mail.wait_for(lambda: self._stopping, gather_s)
            submitted, self._submitted = self._submitted, []
            jobs, self._jobs = self._jobs, []
            cancelled, self._cancelled = self._cancelled, set()
            settled, self._settled = self._settled, []
            if submitted:
                steps.add(submitted)  # in here, so that whoever submits counts them once
        steps.embed(jobs)
        steps.settle(settled)
        if cancelled:
            steps.cancel(cancelled)
        return not self._stopping

    def _wait_s(self, steps: Steps) -> float | None:
        """Say for how long an idle engine has nothing to do; None until there is mail."""
        wait_s = steps.save_in_s()
        ends = [one.until_s - time.monotonic() for one in self._hurries]
        return min([*ends, *([] if wait_s is None else [wait_s])], default=None)

    def _hurry(self, steps: Steps) -> None:
        """Begin what was asked for, and end what is done, in vain, or too late."""
        with self._mail:
            asked, self._hurried = self._hurried, []
        if asked:
            steps.ledger.start_afresh()
        self._hurries += asked
        now_s = time.monotonic()
        going = steps.is_saving and bool(self._hurries)
        ended = [one for one in self._hurries if not going or one.until_s <= now_s]
        self._hurries = [one for one in self._hurries if one not in ended]
        steps.ledger.hurry(is_hurried=bool(self._hurries))
        for one in ended:
            one.done()


def _free() -> None:
    """Give back what the model took: a process that ends with it may leave memory wired."""
    gc.collect()  # models and steps refer to themselves
    mx.clear_cache()
    log.info("freed", extra=facts(left_bytes=mx.get_active_memory()))


@dataclass(frozen=True, slots=True, eq=False)
class _Hurry:
    until_s: float
    done: Callable[[], object]
