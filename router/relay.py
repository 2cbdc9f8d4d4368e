"""One request's stream: prepare, wait, hand to a worker, forward, end exactly once.

A task makes the answer and puts it in the outbox; the handler's generator sends it. So a slow
client holds no place on a worker, and Abort or a client that leaves ends the task wherever it
is. Until its first token a request may lose its place, or its worker, and wait for another
one; after that nothing is tried again. What the worker does with it is in worker/server.py:
the next file of a request's way.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import grpc

from bramley.common.errors import BramleyError, Draining, SlowReader, WorkerLost
from bramley.common.logs import facts
from bramley.common.status import RemoteError
from bramley.common.traces import metadata_of
from bramley.common.wire import to_duration
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2, worker_pb2
from bramley.router.admission import Ask
from bramley.router.attempts import PREEMPTED, Attempt, Failure, Retries, is_lost
from bramley.router.fleet import WorkerView
from bramley.router.gate import Gate, NotServed, Place
from bramley.router.metrics import ModelMetrics
from bramley.router.outbox import Event, Outbox
from bramley.router.prefixes import StoreView
from bramley.router.replicas import Seat
from bramley.router.requests import InFlight
from bramley.router.tracing import Trace, phases

if TYPE_CHECKING:
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

log = logging.getLogger(__name__)

PREPARE_ATTEMPTS = 2
SHORT_CALL_S = 30.0


class Workers(Protocol):
    """The way to the workers, and to the cache store that they share."""

    @property
    def store(self) -> str:
        """Where the store answers; empty while none runs."""
        ...

    @property
    def prefixes(self) -> StoreView:
        """What the store holds, as far as is known."""
        ...

    def stub(self, view: WorkerView) -> "WorkerServiceAsyncStub":
        """Answer with the client of that ready incarnation."""
        ...

    def lost(self, view: WorkerView) -> None:
        """Give it nothing new until it reports again: a call to it broke."""
        ...


def bounded_s(remaining_s: float | None) -> float:
    """Bound a short call to a worker by what remains of its client's time, if that is bounded."""
    return SHORT_CALL_S if remaining_s is None else min(remaining_s, SHORT_CALL_S)


def _is_draining(error: grpc.aio.AioRpcError) -> bool:
    return RemoteError(error).reason == Draining.default_reason


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for what produces an answer; what it ends with may be of no interest to anybody."""
    if not task.done():  # as a rule it is, and waiting is not cheap
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # of which a client that left is not told


class Relay:
    """One accepted call of Generate.

    Args:
        request: as the client sent it.
        entry: of the registry.
        gate: of the model.
        workers: the way to them.
        ask: what the gate is told of it.
        wait_max_s: longest wait for a worker and a turn.
        time_remaining: until the client's deadline; None without one.
        retries: of all requests.
        metrics: of the model.
        trace: of the request.
        backlog_bytes: of the answer, kept for a client that does not read.

    Attributes:
        tokens_sent: put on the client's stream so far.
    """

    def __init__(  # noqa: PLR0913
        self,
        request: generation_pb2.GenerateRequest,
        *,
        entry: InFlight,
        gate: Gate,
        workers: Workers,
        ask: Ask,
        wait_max_s: float,
        time_remaining: Callable[[], float | None],
        retries: Retries,
        metrics: ModelMetrics,
        trace: Trace,
        backlog_bytes: int,
    ) -> None:
        self._request = request
        self._entry = entry
        self._gate = gate
        self._workers = workers
        self._ask = ask
        self._wait_max_s = wait_max_s
        self._time_remaining = time_remaining
        self._retries = retries
        self._metrics = metrics
        self._trace = trace
        self._metadata = metadata_of(entry.id, trace.parent)
        self._outbox = Outbox(request.stream.max_tokens_per_message, backlog_bytes)
        self._clock = asyncio.get_running_loop().time
        self._received_s = self._clock()
        self._queue_s = 0.0
        self._ttft_s = 0.0
        self._seq_no = 0
        self._finish = 0
        self._revision = ""  # of the model whose worker has prepared it
        self._is_outdated = False
        self._is_accepted = False
        self._has_started = False
        self._has_begun = False
        self._progress = -1
        count = request.n if request.HasField("n") else 1
        self._usage = {index: types_pb2.Usage() for index in range(count)}
        self._unfinished = set(self._usage)

    @property
    def tokens_sent(self) -> int:
        """Tokens of all indexes so far."""
        return sum(usage.completion_tokens for usage in self._usage.values())

    async def responses(self) -> AsyncGenerator[router_pb2.GenerateResponse]:
        """Produce the client's stream.

        Yields:
            Its messages, each of an accepted index's ones up to its Finished.

        Raises:
            BramleyError: it ends with this status.
        """
        with self._counted():
            task = self._entry.task = asyncio.create_task(self._produce())
            task.add_done_callback(lambda _: self._outbox.close())  # even if it never began
            try:
                while (event := await self._outbox.get()) is not None:
                    yield self._sent(event)
                await ended(task)
                if not task.cancelled():
                    task.result()
                    return
                if not self._entry.is_aborted:  # its channel was closed under it
                    raise self._lost(self._gate.view)
                for event in self._aborted():
                    yield self._sent(event)
            finally:
                left_s = self._entry.aborted_s or monotonic()
                task.cancel()
                await ended(task)
                if task.cancelled():
                    self._metrics.cancel_latency.observe(monotonic() - left_s)

    async def _produce(self) -> None:
        with self._gate.enter(self._ask, self._wait_max_s) as place:
            prepared = await self._prepare(place)
            attempt = self._retries.attempt(self._request)
            while self._unfinished:
                async with attempt.alone(place.suspects_turn):
                    place.compete(prepared)
                    self._accept(place)
                    await self._try(place, prepared, attempt)
                if self._is_outdated:
                    prepared = await self._prepare(place)

    def _accept(self, place: Place) -> None:
        if not self._is_accepted:
            self._is_accepted = True
            self._outbox.put(
                generation_pb2.Accepted(request_id=self._entry.id, queue_position=place.position)
            )

    async def _try(
        self, place: Place, prepared: worker_pb2.PrepareResponse, attempt: Attempt
    ) -> None:
        """Have a worker answer; return early where another one is to be tried."""
        failure: Failure | None = PREEMPTED
        while failure is PREEMPTED:
            async with place.seat(prepared.max_tokens) as seat:
                if seat.view.revision != self._revision:  # its tokens are another model's
                    self._is_outdated = True
                    place.give_back()
                    return
                is_first = not self._queue_s
                self._queue_s = self._clock() - self._received_s  # what a lost worker took, too
                if is_first:
                    self._metrics.queue_wait.observe(self._queue_s)
                failure = await self._forward(place, seat, prepared)
                if failure is None:
                    attempt.ended_well()
                elif failure is not PREEMPTED:
                    attempt.failed(failure, place, seat, self._metrics, has_begun=self._has_begun)

    async def _prepare(self, place: Place) -> worker_pb2.PrepareResponse:
        question = worker_pb2.PrepareRequest(request=self._request)
        attempts_left = PREPARE_ATTEMPTS
        while True:
            view = await place.worker()
            self._revision, self._is_outdated = view.revision, False
            try:
                return await self._workers.stub(view).Prepare(
                    question, timeout=bounded_s(self._time_remaining()), metadata=self._metadata
                )
            except grpc.aio.AioRpcError as error:
                is_unanswered = self._is_unanswered(error)
                if is_unanswered or is_lost(error):
                    attempts_left -= 1
                elif not _is_draining(error):
                    raise
                if is_unanswered and not (attempts_left and place.has_other(view)):
                    raise NotServed(view, "has a worker that does not answer") from error
                self._workers.lost(view)
                if not attempts_left:
                    raise self._lost(view) from error

    async def _forward(
        self, place: Place, seat: Seat, prepared: worker_pb2.PrepareResponse
    ) -> Failure | None:
        """Pass a worker's answer on.

        Returns:
            What kept it from ending, if another worker might do better.

        Raises:
            AioRpcError: the worker's own error, that any other would answer with too.
            CancelledError: the request's end.
        """
        view = seat.view
        message = worker_pb2.WorkerServiceGenerateRequest(
            request=self._request, prepared=prepared, internal_id=self._entry.id
        )
        call = self._workers.stub(view).Generate(
            message, timeout=self._time_remaining(), metadata=self._metadata
        )
        place.on_preempt(call.cancel)
        try:
            async for response in call:
                if place.is_preempted:  # what had arrived by then: it comes again
                    return PREEMPTED
                self._received(response, place, seat)
        except grpc.aio.AioRpcError as error:
            failure = Failure.of(error, self._lost(view) if is_lost(error) else error)
            if failure is None:
                raise
            if failure.reason != "device_oom":
                self._workers.lost(view)  # before the place is free, or the next one runs into it
            return failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The call was ended, not the task: by preempt(), or by closing its channel.
            return PREEMPTED if place.is_preempted else Failure("worker_lost", self._lost(view))
        finally:
            call.cancel()
        return None if not self._unfinished else Failure("cut_short", self._lost(view))

    def _received(
        self, response: worker_pb2.WorkerServiceGenerateResponse, place: Place, seat: Seat
    ) -> None:
        match response.WhichOneof("event"):
            case "delta":
                delta = response.delta
                self._begin(place, seat)
                usage = self._usage[delta.index]
                usage.completion_tokens = delta.completion_tokens
                usage.reasoning_tokens = delta.reasoning_tokens
                self._outbox.put(delta)
            case "started":
                started = response.started
                started.queue_wait.CopyFrom(to_duration(self._queue_s))
                started.worker = seat.view.incarnation
                for usage in self._usage.values():
                    usage.prompt_tokens = started.prompt_tokens
                    usage.cached.CopyFrom(started.cached)
                if not self._has_started:  # by another worker, before
                    self._has_started = True
                    self._metrics.started(started.prompt_tokens, started.cached)
                    self._outbox.put(started)
            case "progress":
                done = response.progress.prompt_tokens_done
                if done > self._progress:
                    self._progress = done
                    self._outbox.put(response.progress)
            case "finished":
                finished = response.finished
                self._begin(place, seat)  # an index may end without a token
                self._usage[finished.index].CopyFrom(finished.usage)
                self._unfinished.discard(finished.index)
                self._outbox.put(finished)
            case None:  # of a newer worker
                pass

    def _begin(self, place: Place, seat: Seat) -> None:
        if not self._has_begun:
            self._has_begun = True
            place.begun(seat)

    def _sent(self, event: Event) -> router_pb2.GenerateResponse:
        match event:
            case generation_pb2.Delta():
                event.seq_no = self._seq_no
                self._seq_no += 1
                if not self._ttft_s:
                    self._ttft_s = self._clock() - self._received_s
                    self._metrics.ttft.observe(self._ttft_s)
                return router_pb2.GenerateResponse(delta=event)
            case generation_pb2.Started():
                return router_pb2.GenerateResponse(started=event)
            case generation_pb2.Progress():
                return router_pb2.GenerateResponse(progress=event)
            case generation_pb2.Accepted():
                return router_pb2.GenerateResponse(accepted=event)
            case generation_pb2.Finished():
                event.timings.queue.CopyFrom(to_duration(self._queue_s))
                event.timings.ttft.CopyFrom(to_duration(self._ttft_s))
                event.timings.total.CopyFrom(to_duration(self._clock() - self._received_s))
                self._finish = event.reason
                return router_pb2.GenerateResponse(finished=event)

    def _aborted(self) -> Iterator[Event]:
        """End every index that has not ended; the stream keeps its order."""
        if not self._is_accepted:
            yield generation_pb2.Accepted(request_id=self._entry.id)
        for index in sorted(self._unfinished):
            yield generation_pb2.Finished(
                index=index,
                reason=types_pb2.FINISH_REASON_ABORTED,
                usage=self._usage[index],
            )

    def _lost(self, view: WorkerView) -> WorkerLost:
        log.warning("worker lost under a request", extra=facts(model=view.model, epoch=view.epoch))
        return WorkerLost(view.model, tokens_emitted=self.tokens_sent)

    def _is_unanswered(self, error: grpc.aio.AioRpcError) -> bool:
        """Whether our bound of a short call passed, and not the client's deadline."""
        remaining_s = self._time_remaining()
        is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return is_late and (remaining_s is None or remaining_s > 0)

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Count how it ended; what is raised inside goes on."""
        code = "OK"
        try:
            yield
        except BramleyError as error:
            code = error.code
            if not self._queue_s:  # no worker had it
                self._metrics.refused(error.reason)
            if isinstance(error, SlowReader):
                self._metrics.cancellations["slow_reader"].inc()
            raise
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            is_late = self._time_remaining() == 0
            code = "DEADLINE_EXCEEDED" if is_late else "CANCELLED"
            self._metrics.cancellations["client"].inc()
            raise
        finally:
            if self._finish == types_pb2.FINISH_REASON_ABORTED:
                self._metrics.cancellations["abort"].inc()
            self._metrics.ended(code, self._finish)
            total_s = self._clock() - self._received_s
            self._metrics.duration.observe(total_s)
            gaps = max(usage.completion_tokens for usage in self._usage.values()) - 1
            if code == "OK" and gaps > 0:
                self._metrics.itl.observe((total_s - self._ttft_s) / gaps)
            if self._trace.is_recorded:
                spent = phases(self._queue_s, self._ttft_s, total_s)
                self._trace.end(code, spent, self._facts())
            self._metrics.generated_tokens.inc(self.tokens_sent)

    def _facts(self) -> dict[str, str | int]:
        """Tell what a trace says of it: numbers and names, nothing of its content."""
        usage = self._usage[0]
        cached = usage.cached
        return {
            "bramley.request_id": self._entry.id,
            "bramley.priority": self._ask.priority.name.lower(),
            "bramley.cached_tokens": cached.parked + cached.ram + cached.ssd,
            "gen_ai.request.model": self._gate.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": self.tokens_sent,
        }
