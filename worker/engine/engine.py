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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from bramley.common.errors import BramleyError, EngineFault, Overloaded
from bramley.common.logs import facts
from bramley.worker.engine import faults
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.decoding import Decoder, Drawn, Flight, read
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import (
    Deliver,
    Failed,
    Output,
    Preempted,
    Prefilled,
    PromptLogprobs,
    Saved,
    Token,
)
from bramley.worker.engine.plan import Part
from bramley.worker.engine.scheduler import WORKSPACE_BYTES, Limits, admit, schedule
from bramley.worker.engine.seating import Seating
from bramley.worker.engine.slots import Slots
from bramley.worker.engine.stopping import finish
from bramley.worker.engine.watchdog import watch
from bramley.worker.request import Phase, Request
from bramley.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

WORKSPACE_SHARE = 8  # of the ceiling on state, for the scores of a chunk's attention
CLEAR_CACHE_EVERY = 256  # steps
MEASURE_EVERY = 16
EXIT_ENGINE_DIED = 70
# New tokens that make a save worth its cost, at the end of a prompt and of a request.
SAVE_PROMPT_FROM = 256
SAVE_END_FROM = 32


@dataclass(slots=True)
class Counters:
    """Totals that the engine thread writes and anyone may read.

    Attributes:
        step_began_s: of the step that runs, on the monotonic clock; 0 while idle or loading.
    """

    steps: int = 0
    step_began_s: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    preemptions: int = 0
    parked: int = 0
    state_bytes: int = 0
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
        self._slots = Slots(settings.max_rows)
        self._waiting: dict[str, Request] = {}
        self._mail = threading.Condition()
        self._submitted: list[Request] = []
        self._cancelled: set[str] = set()
        self._stopping = False
        self._outputs: list[Output] = []
        self._executor: Executor
        self._limits: Limits
        self._seating: Seating
        self._decoders: dict[int, Decoder] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Load the model, then serve, on a thread of its own."""
        self._thread.start()
        watch(self.counters, self._settings.stall_timeout_s)

    def submit(self, *requests: Request) -> None:
        """Queue requests, all of them or none.

        Raises:
            Overloaded: as many as may wait are waiting.
        """
        now_s = time.monotonic()
        with self._mail:
            depth = len(self._submitted) + self.counters.waiting
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

    def _run(self) -> None:
        try:
            executor = self._executor = self._load()
            self._furnish(executor)
            while self._take_mail():
                self.counters.step_began_s = time.monotonic()
                self._step()
        except BaseException:
            # Without this thread the process can only refuse: its supervisor starts another.
            log.critical("the engine died", exc_info=True)
            logging.shutdown()
            os._exit(EXIT_ENGINE_DIED)

    def _furnish(self, executor: Executor) -> None:
        settings, state_bytes, workspace = self._settings, None, WORKSPACE_BYTES
        if settings.state_bytes is not None:
            workspace = min(settings.state_bytes // WORKSPACE_SHARE, WORKSPACE_BYTES)
            state_bytes = settings.state_bytes - workspace
        self._limits = Limits(settings.prefill_chunk_tokens, executor.heads, workspace)
        self._seating = Seating(
            self._slots,
            executor.cohort,
            executor.waste_columns,
            state_bytes,
            settings.parked_bytes,
        )

    # Between two steps:

    def _take_mail(self) -> bool:
        """Take what was handed over, waiting while idle; return False to stop."""
        with self._mail:
            while not (self._submitted or self._cancelled or self._stopping or self._busy):
                self.counters.step_began_s = 0.0
                self._seating.rest()
                self._count()
                self._measure()
                self._mail.wait()
            self._waiting.update((request.id, request) for request in self._submitted)
            self._submitted = []
            self._count()
            cancelled, self._cancelled = self._cancelled, set()
        if cancelled:
            for request in [*self._waiting.values(), *self._slots.seated]:
                if request.id in cancelled:
                    self._end(request)
            self._count()
        return not self._stopping

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._slots.seated)

    def _end(self, request: Request, *, park: bool = False) -> None:
        self._waiting.pop(request.id, None)  # where it still is, if it failed on its way to a seat
        if park:
            self._seating.park(request)
        elif request.phase is Phase.SEATED:
            self._seating.leave(request)
        request.enter(Phase.ENDED)

    def _fail(self, request: Request, error: BramleyError) -> None:
        self._end(request)
        self._outputs.append(Failed(request.id, error))

    def _send(self) -> None:
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._count()
            self._deliver(outputs)

    def _count(self) -> None:
        counters = self.counters
        counters.running = len(self._slots.seated)
        counters.waiting = len(self._waiting)
        counters.waiting_prompt_tokens = sum(len(one.prompt) for one in self._waiting.values())
        counters.parked = len(self._slots.parked)

    def _measure(self) -> None:
        self.counters.state_bytes = self._seating.nbytes
        self.counters.active_bytes = mx.get_active_memory()

    # One step:

    def _step(self) -> None:
        self._admit()
        seated = self._slots.seated
        plan = schedule(seated, self._seating.numbers, self._executor.costs, self._limits)
        if plan.chunk:
            self._prefill(plan.chunk)
        if plan.decode or plan.chunk:
            self._decode()
        self.counters.steps += 1
        if self.counters.steps % MEASURE_EVERY == 0:
            self._measure()
        if self.counters.steps % CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()
        self._send()

    def _admit(self) -> None:
        if not self._waiting:
            return
        seats = self._slots.free + len(self._slots.parked)
        admission = admit(
            self._slots.seated, list(self._waiting.values()), seats, self._executor.costs
        )
        for slot in admission.preempt:
            self._preempt(self._slots[slot])
        for request_id in admission.seat:
            request = self._waiting[request_id]
            try:
                if not self._seating.has_room(request):
                    break
                self._outputs.append(self._seating.seat(request))
                del self._waiting[request_id]
                self._start_if_ready(request)
            except Exception as error:
                log.exception("a request got no seat", extra=facts(request=request_id))
                self._fail(request, faults.told(error))
                if faults.is_lack_of_memory(error):
                    self._seating.release_memory()

    def _preempt(self, request: Request) -> None:
        """Send a request back to the queue; its state goes to the store, if there is one."""
        self._land(self._seating.numbers[request.slot])
        if request.phase is not Phase.SEATED:
            return  # what was in flight ended it
        self._save(request, request.computed, SAVE_END_FROM)
        self._seating.leave(request)
        request.start_over()
        self.counters.preemptions += 1
        self._outputs.append(Preempted(request.id, request))

    def _relieve(self, number: int, columns: int) -> None:
        """Make room for a cohort's next columns, at the cost of the least urgent if need be."""
        while (cohort := self._seating.cohorts.get(number)) is not None and cohort.slots:
            width = max(cohort.table.lengths) + columns
            if self._seating.can_grow(number, width):
                return
            for each in list(self._decoders):
                self._land(each)
            seated = sorted(self._slots.seated, key=lambda one: (one.priority, -one.arrived_s))
            if len(seated) == 1:
                self._fail(seated[0], self._seating.too_large(width))
            elif seated:
                self._preempt(seated[0])

    def _start_if_ready(self, request: Request) -> None:
        if not request.prompt_left:
            self._seating.cohort(request.slot).start_decoding(request.slot)

    def _prefill(self, chunk: Sequence[Part]) -> None:
        number = self._seating.numbers[chunk[0].slot]
        for each in list(self._decoders):
            self._land(each)  # so that the chunk's own time is measured, and no token waits for it
        self._send()
        self._relieve(number, max(part.tokens for part in chunk))
        chunk = [part for part in chunk if self._seating.numbers.get(part.slot) == number]
        if not chunk:
            return
        requests = [self._slots[part.slot] for part in chunk]
        tokens = [part.tokens for part in chunk]
        cohort = self._seating.cohorts[number]
        started_s = time.monotonic()
        if not self._attempt(number, lambda: self._executor.prefill(cohort, requests, tokens)):
            return
        seconds = time.monotonic() - started_s
        self._executor.costs.prefilled(len(chunk) * max(tokens), seconds)
        self.counters.prompt_tokens += sum(tokens)
        self.counters.prefill_s += seconds
        for request in requests:
            self._prefilled(request)

    def _prefilled(self, request: Request) -> None:
        if request.wants_progress:
            self._outputs.append(Prefilled(request.id, request.computed))
        if request.saving is not None:
            stop = request.saving.place(request.computed, is_done=not request.prompt_left)
            if stop is not None:
                self._save(request, stop, SAVE_PROMPT_FROM)
        self._start_if_ready(request)

    def _decode(self) -> None:
        started_s = time.monotonic()
        cohorts = dict(self._seating.cohorts)
        for gone in self._decoders.keys() - cohorts.keys():
            del self._decoders[gone]
        for number, cohort in cohorts.items():
            decoder = self._decoder(number, cohort)
            if decoder.flight is not None and decoder.flight.is_awaited:
                self._land(number)
                self._send()
            self._relieve(number, 1)
            if cohort.decoding:
                self._launch(number, cohort, decoder)
            elif decoder.flight is not None:
                self._land(number)
        self._executor.costs.decoded(time.monotonic() - started_s)

    def _decoder(self, number: int, cohort: Cohort) -> Decoder:
        decoder = self._decoders.get(number)
        if decoder is None or decoder.cohort is not cohort:
            decoder = self._decoders[number] = self._executor.decoder(cohort)
        return decoder

    def _launch(self, number: int, cohort: Cohort, decoder: Decoder) -> None:
        requests = [self._slots[slot] for slot in cohort.slots[: cohort.decoding]]
        before: list[Flight | None] = [None]

        def launch() -> None:
            before[0] = decoder.launch(requests)

        if self._attempt(number, launch):
            self._attempt(number, lambda: self._read(before[0]))
            if self._decoders.get(number) is decoder:
                self._attempt(number, decoder.draw)

    def _land(self, number: int) -> None:
        """Read what a cohort has in flight, so that the host knows every token."""
        decoder = self._decoders.get(number)
        flight = decoder.land() if decoder is not None else None
        if flight is not None:
            self._attempt(number, lambda: self._read(flight))

    def _read(self, flight: Flight | None) -> None:
        if flight is not None:
            now_s = 0.0
            for drawn in read(flight):
                now_s = now_s or time.monotonic()
                request = drawn.request
                if request.phase is not Phase.SEATED:
                    continue
                try:
                    self._apply(drawn, now_s)
                except Exception as error:
                    log.exception("a row failed", extra=facts(request=request.id))
                    self._fail(request, faults.told(error))

    def _apply(self, drawn: Drawn, now_s: float) -> None:
        request = drawn.request
        if drawn.is_broken:
            self._fail(request, EngineFault("the model gave no finite scores"))
            return
        if not request.output:
            self.counters.prompt_tokens += 1
            if request.prompt_logprobs:
                self._outputs.append(PromptLogprobs(request.id, tuple(request.prompt_logprobs)))
        request.output.append(drawn.token)
        self.counters.completion_tokens += 1
        ended = finish(request)
        if ended is not None:
            self._save(request, request.computed, SAVE_END_FROM)
            self._end(request, park=True)
        self._outputs.append(Token(request.id, drawn.token, now_s, ended, drawn.logprob))

    def _save(self, request: Request, stop: int, worth: int) -> None:
        if request.saving is None or stop - request.saving.stored < worth:
            return
        for span, staged in self._seating.save(request, stop):
            tokens = array("I", request.tokens(0, span.stop)).tobytes()
            self._outputs.append(Saved(request.id, span, staged, tokens))

    # What goes wrong:

    def _attempt(self, number: int, work: Callable[[], None]) -> bool:
        """Do part of a step for one cohort.

        A lack of memory is met by giving back what nobody needs, and one more try; then the
        newest request of the cohort ends. Any other fault leaves the cohort's state unknown:
        all of its requests end.

        Returns:
            Whether it was done.
        """
        try:
            work()
        except Exception as error:
            log.exception("a step failed", extra=facts(cohort=self._seating.cohorts[number]))
            if not faults.is_lack_of_memory(error):
                self._lose(number, error)
                return False
        else:
            return True
        try:
            self._seating.release_memory()
            self._seating.cohorts[number].evaluate()
            work()
        except Exception as error:
            log.exception("it failed again, after memory was given back")
            self._run_short(number, error)
            return False
        return True

    def _run_short(self, number: int, error: Exception) -> None:
        cohort = self._seating.cohorts[number]
        seated = [one for one in self._slots.seated if self._seating.numbers[one.slot] == number]
        try:
            cohort.evaluate()  # whether the state is still what its lengths say
        except Exception:
            log.exception("its state is lost")
            self._lose(number, error)
            return
        if seated:
            self._fail(max(seated, key=lambda one: one.arrived_s), faults.told(error))

    def _lose(self, number: int, error: Exception) -> None:
        """End a cohort's requests and start from empty state: what was written is unknown."""
        self._decoders.pop(number, None)
        for request in self._seating.lose(number):
            request.enter(Phase.ENDED)
            self._outputs.append(Failed(request.id, faults.told(error)))
