"""One model's gate: requests wait here for a ready worker and for their turn.

It carries out what router/admission.py decides. A place is left in one way only, the end of
``enter``'s block, whatever ends the request.
"""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from time import monotonic

from bramley.common.errors import NoReadyWorker, Overloaded, QueueTimeout
from bramley.common.ids import ModelName, RequestId
from bramley.common.wire import short_name
from bramley.protos.v1 import types_pb2
from bramley.router.admission import Line, retry_after_s
from bramley.router.fleet import WorkerView
from bramley.router.metrics import ModelMetrics
from bramley.router.routing import Candidate, choose_worker

RETRY_AFTER_S = 5.0


class Gate:
    """The line of one model, and the tasks that stand in it."""

    def __init__(
        self, model: ModelName, queue_max: int, running_max: int | None, metrics: ModelMetrics
    ) -> None:
        self.view = WorkerView(model)
        self._line = Line(queue_max)
        self._running_max = running_max
        self._metrics = metrics
        self._places: dict[RequestId, Place] = {}
        self._mean_run_s = 0.0

    def __repr__(self) -> str:
        return f"{self.view.model}: {self._line!r}"

    @property
    def running_count(self) -> int:
        """Requests that have a place on a worker."""
        return self._line.running_count

    @property
    def waiting_count(self) -> int:
        """Requests that wait, for a worker or for their turn."""
        return self._line.waiting_count

    def update(self, view: WorkerView) -> None:
        """Take in what is now known of the model's worker."""
        before, self.view = self.view, view
        turned = (before.epoch, before.is_ready, before.is_failed) != (
            view.epoch,
            view.is_ready,
            view.is_failed,
        )
        if turned or before.limits != view.limits:
            self._wake(self._line.resize(self._limit() if view.is_ready else 0))
        if turned:
            self._wake(self._places)

    @contextmanager
    def enter(self, request: RequestId, wait_max_s: float) -> Generator["Place"]:
        """Hold a place in the line for the length of the block, and wait so long at most.

        Yields:
            The place.

        Raises:
            Overloaded: as many wait as may.
            NotServed: nobody serves the model, and nobody is about to.
        """
        self.refuse_if_failed()
        if refusal := self._line.enter(request):
            raise Overloaded(
                f"{refusal.depth} requests wait for model {self.view.model!r} already",
                facts={"model": self.view.model, "depth": refusal.depth},
                retry_after_s=retry_after_s(self._mean_run_s, self._limit()),
            )
        place = self._places[request] = Place(self, self._line, request, wait_max_s)
        self._count()
        try:
            yield place
        finally:
            del self._places[request]
            if place.started_s is not None:
                self._mean_run_s += 0.2 * (monotonic() - place.started_s - self._mean_run_s)
            self._wake(self._line.leave(request))

    def choose(self) -> WorkerView | None:
        """Choose a ready worker, if there is one."""
        return choose_worker([Candidate(self.view, self._line.running_count)])

    def refuse_if_failed(self) -> None:
        """Raise, if waiting for a worker is in vain.

        Raises:
            NotServed: it is.
        """
        if self.view.is_failed:
            raise NotServed(self.view, f"does not start: {self.view.reason}")

    def compete(self, request: RequestId) -> None:
        """Let a prepared request have its turn when it comes."""
        self._wake(self._line.prepared(request))

    def _limit(self) -> int:
        limits = self.view.limits
        return self._running_max or (limits.max_rows if limits else 0) or 1

    def _wake(self, requests: Iterable[RequestId]) -> None:
        for request in requests:
            if place := self._places.get(request):
                place.news.set()
        self._count()

    def _count(self) -> None:
        self._metrics.in_flight.set(self._line.running_count)
        self._metrics.queue_depth.set(self._line.waiting_count)


class NotServed(NoReadyWorker):
    """Nobody serves a model now; ``problem`` goes on after its name."""

    def __init__(self, view: WorkerView, problem: str) -> None:
        super().__init__(
            f"model {view.model!r} {problem}",
            facts={"model": view.model, "restarts": view.restarts},
            retry_after_s=RETRY_AFTER_S,
        )


class Place:
    """One request's place in its model's line.

    Attributes:
        news: set when something has changed for this request.
        started_s: when its turn came, on the monotonic clock.
    """

    def __init__(self, gate: Gate, line: Line, request: RequestId, wait_max_s: float) -> None:
        self._gate = gate
        self._line = line
        self._request = request
        self._wait_max_s = wait_max_s
        self._entered_s = monotonic()
        self.news = asyncio.Event()
        self.started_s: float | None = None

    @property
    def position(self) -> int:
        """Requests before it in the queue."""
        return self._line.position(self._request)

    async def worker(self) -> WorkerView:
        """Wait for a ready worker.

        Returns:
            The worker.

        Raises:
            NotServed: waiting is in vain.
            QueueTimeout: it has waited as long as it may.
        """
        while (view := self._gate.choose()) is None:
            await self._wait()
        return view

    def compete(self) -> None:
        """Say that it is prepared: from now on its turn may come."""
        self._gate.compete(self._request)

    async def turn(self) -> WorkerView:
        """Wait for a place on a ready worker, and take it.

        Returns:
            The worker.

        Raises:
            NotServed: waiting is in vain.
            QueueTimeout: it has waited as long as it may.
        """
        while not self._line.is_running(self._request):
            await self._wait()
        view = await self.worker()
        self.started_s = monotonic()
        return view

    async def _wait(self) -> None:
        self._gate.refuse_if_failed()
        self.news.clear()
        waited_s = monotonic() - self._entered_s
        try:
            async with asyncio.timeout(self._wait_max_s - waited_s):
                await self.news.wait()
        except TimeoutError:
            raise _timed_out(self._gate, monotonic() - self._entered_s) from None


def _timed_out(gate: Gate, elapsed_s: float) -> QueueTimeout:
    # The reason tells a loading model from a long queue.
    view = gate.view
    facts = {"model": view.model, "elapsed_s": f"{elapsed_s:.3f}"}
    if view.is_ready:
        return QueueTimeout(
            f"no place on model {view.model!r} within {elapsed_s:.1f} s",
            facts={**facts, "depth": gate.waiting_count},
            retry_after_s=RETRY_AFTER_S,
        )
    state = short_name(types_pb2.ModelState, view.state)
    return QueueTimeout(
        f"model {view.model!r} was not ready within {elapsed_s:.1f} s: {state}",
        reason="MODEL_LOADING",
        facts={**facts, "state": state},
        retry_after_s=RETRY_AFTER_S,
    )
