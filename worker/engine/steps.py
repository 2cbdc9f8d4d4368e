"""One step of the engine: admit, prefill a chunk, decode; and what came of it.

Next in the walk: worker/engine/scheduler.py. On the engine's thread.
"""

import time
from collections.abc import Iterable, Sequence
from functools import partial

import mlx.core as mx

from bramley.common.errors import BramleyError, EngineFault
from bramley.worker.embedding.job import EmbedJob
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.containment import Containment
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.decoding import Decoder, Drawn, Flight, read
from bramley.worker.engine.embedder import Embedder
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
from bramley.worker.engine.saver import Saver
from bramley.worker.engine.scheduler import (
    WORKSPACE_BYTES,
    Limits,
    admit,
    chunk_s,
    gather_s,
    schedule,
    share_of_decoding,
)
from bramley.worker.engine.seating import Seating
from bramley.worker.engine.slots import Slots
from bramley.worker.engine.stopping import finish
from bramley.worker.models.contract import Lane
from bramley.worker.owed import Ledger, Outcome
from bramley.worker.request import Phase, Request
from bramley.worker.settings import WorkerSettings

WORKSPACE_SHARE = 8  # of the ceiling on state, for the scores of a chunk's attention
CLEAR_CACHE_EVERY = 256  # steps
MEASURE_EVERY = 16
# New tokens that make a save worth its cost, at the end of a prompt and of a request.
SAVE_PROMPT_FROM = 256
SAVE_END_FROM = 32


class Steps:
    """Everything that has been submitted and has not ended, and the steps that it takes.

    Args:
        executor: of the model.
        settings: of the worker.
        counters: to be kept.
        deliver: takes what a step produced.
    """

    def __init__(
        self, executor: Executor, settings: WorkerSettings, counters: Counters, deliver: Deliver
    ) -> None:
        self.counters = counters
        self._executor = executor
        self._deliver = deliver
        self._outputs: list[Output] = []
        self._waiting: dict[str, Request] = {}
        self._decoders: dict[int, Decoder] = {}
        state_bytes, workspace = settings.beside(mx.get_active_memory()), WORKSPACE_BYTES
        if state_bytes is not None:
            workspace = min(state_bytes // WORKSPACE_SHARE, WORKSPACE_BYTES)
            state_bytes -= workspace
        lane = executor.lane
        self._limits = Limits(
            settings.prefill_chunk_tokens,
            executor.heads,
            workspace,
            shares_chunks=lane is Lane.BATCHED,
        )
        self._slots = Slots(min(settings.max_rows, lane.rows_max or settings.max_rows))
        self.ledger = Ledger()
        self._seating = Seating(
            self._slots,
            executor.cohort,
            executor.waste_columns,
            state_bytes,
            self.ledger,
            settings.parked_bytes,
        )
        self._saver = Saver(self._seating, self.ledger, counters, self._outputs)
        counters.refused, counters.lost = self.ledger.refused, self.ledger.lost
        self._contained = Containment(self._seating, self._fail, self._lose)
        self._embedder = Embedder(
            executor, self._seating, self._limits, self._contained, self._outputs
        )
        self._measure()
        counters.weights_bytes = counters.active_bytes - counters.state_bytes
        mx.reset_peak_memory()

    @property
    def is_busy(self) -> bool:
        """Whether anyone waits or runs."""
        return bool(self._waiting or self._slots.seated or self._embedder.is_busy)

    def add(self, requests: Iterable[Request]) -> None:
        """Let requests wait for their seats."""
        self._waiting.update((request.id, request) for request in requests)
        self._count()

    def gather_s(self, arrived: Sequence[Request]) -> float:
        """Say how long to wait, idle, for others who may come with these."""
        return gather_s(arrived, self._executor.costs) if self._limits.shares_chunks else 0.0

    def embed(self, jobs: Iterable[EmbedJob]) -> None:
        """Let jobs wait for their turns."""
        self._embedder.add(jobs)

    def cancel(self, request_ids: set[str]) -> None:
        """End requests and jobs without a word."""
        self._embedder.cancel(request_ids)
        for request in [*self._waiting.values(), *self._slots.seated]:
            if request.id in request_ids:
                self._contained.request(request, partial(self._end, request))
        self._count()

    def rest(self) -> None:
        """Check that nothing is left over, before an engine that is idle waits."""
        self._decoders.clear()
        self._seating.rest()
        self._count()
        self._measure()

    def settle(self, settled: Iterable[tuple[Saved, Outcome]]) -> None:
        """Note what became of spans that were handed over."""
        now_s = time.monotonic()
        for saved, outcome in settled:
            self.ledger.settle(saved.saving.account, saved.handed, outcome, now_s)
        self._count()

    @property
    def is_saving(self) -> bool:
        """Whether something is on its way to the store, or can be copied before long."""
        return self.ledger.flying > 0 or (self._saver.can_go_on and not self.ledger.is_vain)

    def save_in_s(self) -> float | None:
        """Say in how many seconds some of what is owed can be copied; None until news come."""
        return self._saver.wait_s(time.monotonic())

    def save_owed(self) -> None:
        """Copy a piece of what is owed, if now is the time for it."""
        number = self._saver.cohort_number(time.monotonic())
        if number is not None and not self._contained.cohort(number, self._saver.go_on):
            self._saver.put_off()
        self._send()

    def run(self) -> None:
        """Take one step and deliver what it gave."""
        self._admit()
        seated = self._slots.seated
        chunk = schedule(seated, self._seating.numbers, self._executor.costs, self._limits)
        is_decoding = any(not request.prompt_left for request in seated)
        if self._embedder.takes_turn(self._executor.costs, decode=is_decoding, prefill=bool(chunk)):
            self._embed(chunk_s(self._executor.costs, decode=is_decoding))
        elif chunk:
            self._prefill(chunk)
        self._decode()
        self.counters.steps += 1
        if self.counters.steps % MEASURE_EVERY == 0:
            self._measure()
        if self.counters.steps % CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()
        self._measure_peak()
        self._send()

    def _admit(self) -> None:
        if not self._waiting:
            return
        seats = self._slots.free + len(self._slots.parked)
        admission = admit(
            self._slots.seated, list(self._waiting.values()), seats, self._executor.costs
        )
        for slot in admission.preempt:
            victim = self._slots[slot]
            self._contained.request(victim, partial(self._preempt, victim))
        for request_id in admission.seat:
            request = self._waiting[request_id]
            self._contained.request(request, partial(self._seat, request))
            if request.phase is Phase.WAITING:
                break  # there is no memory for it yet

    def _seat(self, request: Request) -> None:
        if self._seating.has_room(request):
            self._outputs.append(self._seating.seat(request))
            del self._waiting[request.id]
            self._start_if_ready(request)

    def _preempt(self, request: Request) -> None:
        """Send a request back to the queue; its state goes to the store, if there is one."""
        self._land(self._seating.numbers[request.slot])
        if request.phase is not Phase.SEATED:
            return  # what was in flight ended it
        save = partial(self._saver.save, request, request.computed, SAVE_END_FROM)
        self._contained.request(request, save)
        if request.phase is not Phase.SEATED:
            return
        self._seating.leave(request)
        request.start_over()
        self.counters.preemptions += 1
        self._outputs.append(Preempted(request.id, request))

    def _relieve(self, number: int, parts: Iterable[Part]) -> None:
        """Make room for what slots compute next, at the cost of the least urgent if need be."""
        while True:
            numbers = self._seating.numbers
            here = [part for part in parts if numbers.get(part.slot) == number]
            if not here:
                return
            cohort = self._seating.cohorts[number]
            # Every row of the forward has as many columns as the one with the most.
            width = max(cohort.length(part.slot) for part in here)
            width += max(part.tokens for part in here)
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
        if not self._contained.cohort(number, partial(self._relieve, number, chunk)):
            return
        chunk = [part for part in chunk if self._seating.numbers.get(part.slot) == number]
        if not chunk:
            return
        requests = [self._slots[part.slot] for part in chunk]
        tokens = [part.tokens for part in chunk]
        cohort = self._seating.cohorts[number]
        share = share_of_decoding(self._slots.seated)
        started_s = time.monotonic()
        if not self._contained.cohort(
            number, lambda: self._executor.prefill(cohort, requests, tokens)
        ):
            return
        seconds = time.monotonic() - started_s
        self._executor.costs.prefilled(len(chunk) * max(tokens), seconds, share)
        self.counters.prompt_tokens += sum(tokens)
        self.counters.prefill_s += seconds
        for request in requests:
            self._contained.request(request, partial(self._prefilled, request))

    def _embed(self, seconds: float) -> None:
        for each in list(self._decoders):
            self._land(each)
        self._send()
        share = share_of_decoding(self._slots.seated)
        started_s = time.monotonic()
        tokens, computed = self._embedder.turn(self._executor.costs, seconds)
        if not computed:
            return
        seconds = time.monotonic() - started_s
        self._executor.costs.prefilled(computed, seconds, share)
        self.counters.prompt_tokens += tokens
        self.counters.prefill_s += seconds

    def _prefilled(self, request: Request) -> None:
        if request.wants_progress:
            self._outputs.append(Prefilled(request.id, request.computed))
        if request.saving is not None:
            stop = request.saving.place(request.computed, is_done=not request.prompt_left)
            if stop is not None:
                self._saver.save(request, stop, SAVE_PROMPT_FROM)
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
            parts = [Part(slot, 1) for slot in cohort.slots[: cohort.decoding]]
            if not self._contained.cohort(number, partial(self._relieve, number, parts)):
                continue
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
        if not self._contained.cohort(number, decoder.draw):
            return
        requests = [self._slots[slot] for slot in cohort.slots[: cohort.decoding]]
        before: list[Flight | None] = [None]

        def launch() -> None:
            before[0] = decoder.launch(requests)

        if self._contained.cohort(number, launch):
            self._contained.cohort(number, lambda: self._read(before[0]), can_wait=False)
            if self._decoders.get(number) is decoder:
                self._contained.cohort(number, decoder.draw)

    def _land(self, number: int) -> None:
        """Read what a cohort has in flight, so that the host knows every token."""
        decoder = self._decoders.get(number)
        if decoder is None or not self._contained.cohort(number, decoder.draw):
            return
        flight = decoder.land()
        if flight is not None:
            self._contained.cohort(number, lambda: self._read(flight), can_wait=False)

    def _read(self, flight: Flight | None) -> None:
        if flight is None:
            return
        drawn = list(read(flight))
        now_s = time.monotonic()
        for one in drawn:
            if one.request.phase is Phase.SEATED:
                self._contained.request(one.request, partial(self._apply, one, now_s))

    def _apply(self, drawn: Drawn, now_s: float) -> None:
        request = drawn.request
        if drawn.is_broken:
            self._fail(request, EngineFault("the model gave no finite scores"))
            return
        guide = request.guide
        is_complete = guide is not None and guide.take(drawn.token)
        if guide is not None and guide.error is not None:
            self._fail(request, guide.error)
            return
        if not request.output:
            self.counters.prompt_tokens += 1
            if request.prompt_logprobs:
                self._outputs.append(PromptLogprobs(request.id, tuple(request.prompt_logprobs)))
        request.output.append(drawn.token)
        self.counters.completion_tokens += 1
        ended = finish(request, is_complete=is_complete)
        if ended is not None:
            self._saver.save(request, request.computed, SAVE_END_FROM)
            self._end(request, park=True)
        self._outputs.append(Token(request.id, drawn.token, now_s, ended, drawn.logprob))

    def _end(self, request: Request, *, park: bool = False) -> None:
        self._waiting.pop(request.id, None)  # where it still is, if it failed on its way to a seat
        if park:
            self._seating.park(request)
        elif request.phase is Phase.SEATED:
            self._seating.lose_debt(request.saving)
            self._seating.leave(request)
        request.enter(Phase.ENDED)

    def _fail(self, request: Request, error: BramleyError) -> None:
        self._end(request)
        self._outputs.append(Failed(request.id, error))

    def _lose(self, number: int, error: BramleyError) -> None:
        """End a cohort's requests and start from empty state: what was written is unknown."""
        self._decoders.pop(number, None)
        for request in self._seating.lose(number):
            request.enter(Phase.ENDED)
            self._outputs.append(Failed(request.id, error))

    def _send(self) -> None:
        if self._outputs:
            outputs = list(self._outputs)
            self._outputs.clear()
            self._count()
            self._deliver(outputs)

    def _count(self) -> None:
        counters = self.counters
        counters.running = len(self._slots.seated)
        counters.waiting = len(self._waiting)
        counters.waiting_prompt_tokens = sum(len(one.prompt) for one in self._waiting.values())
        counters.rows = {row.since: row for row in self._slots.parked}
        counters.parked = len(counters.rows)
        counters.owed, counters.stored = self._saver.owed, self.ledger.stored

    def _measure(self) -> None:
        self.counters.state_bytes = self._seating.nbytes
        self.counters.active_bytes = mx.get_active_memory()

    def _measure_peak(self) -> None:
        """Learn what the step took beside weights and state."""
        peak = mx.get_peak_memory()
        mx.reset_peak_memory()
        counters = self.counters
        beside = peak - counters.weights_bytes - counters.state_bytes
        if beside <= counters.workspace_bytes:
            return  # as a rule; counting the rows' bytes takes longer than the rest of this
        before, counters.state_bytes = counters.state_bytes, self._seating.nbytes
        # The step may have ended with less state than it began with.
        beside -= max(counters.state_bytes - before, 0)
        counters.workspace_bytes = max(counters.workspace_bytes, beside)
