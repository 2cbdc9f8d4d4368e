"""The thread that owns MLX: one step after the other, and mail between two steps.

Next in the walk: worker/engine/steps.py. Everything that touches MLX in this process
runs here: load, step, free. Others hand over submissions and cancellations, which take
effect between two steps, and get what a step produced in one delivery.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from bramley.common.errors import Overloaded
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Deliver
from bramley.worker.engine.steps import Steps
from bramley.worker.engine.watchdog import watch
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
        self._cancelled: set[str] = set()
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

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs, and nothing is still to be taken."""
        with self._mail:
            return not (self._mailed or self.counters.waiting or self.counters.running)

    @property
    def _mailed(self) -> bool:
        return bool(self._submitted or self._cancelled)

    def _run(self) -> None:
        try:
            steps = Steps(self._load(), self._settings, self.counters, self._deliver)
            while self._take_mail(steps):
                self.counters.step_began_s = time.monotonic()
                steps.run()
            self._over.set()
        except BaseException:
            # Without this thread the process can only refuse: its supervisor starts another.
            log.critical("the engine died", exc_info=True)
            logging.shutdown()
            os._exit(EXIT_ENGINE_DIED)

    def _take_mail(self, steps: Steps) -> bool:
        """Take what was handed over, waiting while idle; return False to stop."""
        if self.is_idle and not steps.is_busy:
            self.counters.step_began_s = 0.0
            steps.rest()
        with self._mail:
            while not (self._mailed or self._stopping or steps.is_busy):
                self._mail.wait()
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, set()
            if submitted:
                steps.add(submitted)  # in here, so that whoever submits counts them once
        if cancelled:
            steps.cancel(cancelled)
        return not self._stopping
