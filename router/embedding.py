"""One call of Embed: it waits for its turn as a generation does, and a worker answers it whole.

It has one place of its model's line, whatever it asks for. Nothing of it is ever half told, so
that it may be tried on another worker until it has its answer.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

import grpc

from bramley.common.errors import Aborted, BramleyError, InvalidRequest, WorkerLost
from bramley.common.traces import TraceParent, metadata_of
from bramley.common.wire import pack_ids
from bramley.protos.v1 import router_pb2, types_pb2, worker_pb2
from bramley.router.admission import Ask
from bramley.router.attempts import PREEMPTED, Attempt, Failure, Retries, is_lost
from bramley.router.gate import Gate, Place
from bramley.router.metrics import ModelMetrics
from bramley.router.relay import Workers, ended
from bramley.router.replicas import Seat
from bramley.router.requests import InFlight

TOKEN_BYTES = 4  # of text; nobody has counted its tokens yet


def check(request: router_pb2.EmbedRequest) -> None:
    """Check what needs no model.

    Raises:
        InvalidRequest: there is nothing to embed.
    """
    if not (request.texts or request.token_ids):
        raise InvalidRequest("texts", "is empty, and so is token_ids")


def tokens_of(request: router_pb2.EmbedRequest) -> int:
    """Estimate the tokens of all texts, at least 1."""
    ids = sum(len(one.ids) for one in request.token_ids)
    return max(ids + sum(map(len, request.texts)) // TOKEN_BYTES, 1)


class Embedding:
    """One accepted call.

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
        parent: of its trace.
    """

    def __init__(  # noqa: PLR0913
        self,
        request: router_pb2.EmbedRequest,
        *,
        entry: InFlight,
        gate: Gate,
        workers: Workers,
        ask: Ask,
        wait_max_s: float,
        time_remaining: Callable[[], float | None],
        retries: Retries,
        metrics: ModelMetrics,
        parent: TraceParent | None,
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
        self._metadata = metadata_of(entry.id, parent)
        self._began_s = monotonic()
        self._has_run = False
        self._response = router_pb2.EmbedResponse()

    async def answer(self) -> router_pb2.EmbedResponse:
        """Have it answered.

        Returns:
            The vectors.

        Raises:
            Aborted: somebody ended it.
        """
        with self._counted():
            task = self._entry.task = asyncio.create_task(self._produce())
            try:
                await asyncio.wait([task])
                if task.cancelled() and self._entry.is_aborted:
                    raise Aborted("the request was ended by an Abort")
                task.result()
                return self._response
            finally:
                task.cancel()
                await ended(task)

    async def _produce(self) -> None:
        asked = _asked(self._request, self._entry.id)
        with self._gate.enter(self._ask, self._wait_max_s) as place:
            attempt = self._retries.attempt(self._request)
            is_answered = False
            while not is_answered:
                async with attempt.alone(place.suspects_turn):
                    place.compete_for(tokens_of(self._request))
                    is_answered = await self._try(place, asked, attempt)

    async def _try(
        self, place: Place, asked: worker_pb2.WorkerServiceEmbedRequest, attempt: Attempt
    ) -> bool:
        """Have a worker answer; False where another one is to be tried."""
        while True:
            async with place.seat(0) as seat:
                if not self._has_run:
                    self._has_run = True
                    self._metrics.queue_wait.observe(monotonic() - self._began_s)
                got = await self._call(place, seat, asked)
                if isinstance(got, worker_pb2.WorkerServiceEmbedResponse):
                    place.begun(seat)
                    attempt.ended_well()
                    self._tell(got)
                    return True
                if got is not PREEMPTED:
                    attempt.failed(got, place, seat, self._metrics)
                    return False

    async def _call(
        self, place: Place, seat: Seat, asked: worker_pb2.WorkerServiceEmbedRequest
    ) -> worker_pb2.WorkerServiceEmbedResponse | Failure:
        view = seat.view
        call = self._workers.stub(view).Embed(
            asked, timeout=self._time_remaining(), metadata=self._metadata
        )
        place.on_preempt(call.cancel)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            lost = WorkerLost(view.model) if is_lost(error) else error
            failure = Failure.of(error, lost)
            if failure is None:
                raise
            if failure.reason != "device_oom":
                self._workers.lost(view)
            return failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The call was ended, not the task: by preempt(), or by closing its channel.
            if place.is_preempted:
                return PREEMPTED
            return Failure("worker_lost", WorkerLost(view.model))
        finally:
            call.cancel()

    def _tell(self, answer: worker_pb2.WorkerServiceEmbedResponse) -> None:
        for values_le, tokens in zip(answer.values_le, answer.prompt_tokens, strict=True):
            self._response.embeddings.add(values_le=values_le, prompt_tokens=tokens)
        self._metrics.started(sum(answer.prompt_tokens), types_pb2.CachedTokens())

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Count how it ended; what is raised inside goes on."""
        code = "OK"
        try:
            yield
        except BramleyError as error:
            code = error.code
            if isinstance(error, Aborted):
                self._metrics.cancellations["abort"].inc()
            elif not self._has_run:  # no worker had it
                self._metrics.refused(error.reason)
            raise
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = "DEADLINE_EXCEEDED" if self._time_remaining() == 0 else "CANCELLED"
            self._metrics.cancellations["client"].inc()
            raise
        finally:
            self._metrics.ended(code, 0)
            self._metrics.duration.observe(monotonic() - self._began_s)


def _asked(
    request: router_pb2.EmbedRequest, internal_id: str
) -> worker_pb2.WorkerServiceEmbedRequest:
    return worker_pb2.WorkerServiceEmbedRequest(
        texts=request.texts,
        token_ids_le=[pack_ids(one.ids) for one in request.token_ids],
        mean=request.pooling == router_pb2.EmbedRequest.POOLING_MEAN,
        last_token=request.pooling == router_pb2.EmbedRequest.POOLING_LAST,
        normalize=request.normalize,
        dimensions=request.dimensions,
        internal_id=internal_id,
    )
