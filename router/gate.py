"""One model's gate: requests wait here for a ready worker and for their turn.

It carries out what router/admission.py and router/routing.py decide. A place is left in one
way only, the end of ``enter``'s block, whatever ends the request; and what was booked on a
worker is released in one way only, the end of ``Place.seat``'s block.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from math import inf
from time import monotonic

from bramley.common.errors import (
    BramleyError,
    DeadlineUnmeetable,
    NoReadyWorker,
    Overloaded,
    QueueTimeout,
)
from bramley.common.ids import ModelName, RequestId, WorkerName
from bramley.common.wire import short_name
from bramley.protos.v1 import types_pb2, worker_pb2
from bramley.router.admission import Ask, Changes, Line, QueueFull, TooLate
from bramley.router.breaker import OPEN_MIN_S
from bramley.router.classes import Classes, Priority
from bramley.router.fleet import WorkerView
from bramley.router.metrics import ModelMetrics
from bramley.router.prefixes import StoreView, split
from bramley.router.replicas import Replicas, Seat
from bramley.router.routing import Replica

RETRY_AFTER_S = 5.0
TOKEN_BYTES = 4


class Gate:
    """The line of one model, its workers, and the tasks that stand in the line.

    Attributes:
        model: its name.
        replicas: its workers.
        used_s: when it last had a request.
        refusal: says why waiting is in vain while the model is not loaded, if it is.
        timeout: says what was waited for in vain, where that was not a worker.
        changed: called when a request comes to a model without a ready worker, when none is
            left, and when none is left that runs.
    """

    def __init__(
        self,
        model: ModelName,
        classes: Classes,
        running_max: int | None,
        metrics: ModelMetrics,
        store: StoreView,
    ) -> None:
        self.model = model
        self.replicas = Replicas(running_max)
        self._line = Line(classes)
        self._metrics = metrics
        self._store = store
        self._places: dict[RequestId, Place] = {}
        self._unseated: dict[RequestId, Place] = {}  # whose turn it is, with no worker free yet
        self._suspect: RequestId | None = None
        self._is_held = False
        self.used_s = 0.0
        self.refusal: Callable[[], BramleyError | None] = lambda: None
        self.timeout: Callable[[], BramleyError | None] = lambda: None
        self.changed: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"{self.model}: {self._line!r}"

    @property
    def view(self) -> WorkerView:
        """The worker that speaks for the model: a ready one, or else the nearest to it."""
        views = self.replicas.views or [WorkerView(self.model, WorkerName(self.model))]
        return max(views, key=lambda view: (view.is_ready, not view.is_failed, bool(view.load)))

    @property
    def running_count(self) -> int:
        """Requests that have a place on a worker."""
        return self._line.running_count

    @property
    def waiting_count(self) -> int:
        """Requests that wait, for a worker or for their turn."""
        return self._line.waiting_count

    @property
    def waiting_since_s(self) -> float:
        """When the request came that has waited longest, of those without a place."""
        waiting = (ask.entered_s for ask in self._line.waiting())
        return min(waiting, default=inf)

    @property
    def is_full(self) -> bool:
        """Whether a request of class DEFAULT would be refused now, as too many wait."""
        return self._line.is_full(Priority.DEFAULT)

    def update(self, view: WorkerView) -> None:
        """Take in what is now known of one of the model's workers."""
        before = self.replicas.update(view)
        if before is None or _turned(before, view) or before.limits != view.limits:
            self.wake()

    def hold(self, *, is_held: bool) -> None:
        """Give its workers nothing new, or go on; what runs goes on in either case."""
        self._is_held = is_held
        self.wake()

    def set_rules(self, classes: Classes, running_max: int | None) -> None:
        """Let others wait, or more run, from now on."""
        self._line.classes = classes
        self.replicas.running_max = running_max
        self.wake()

    def wake(self) -> None:
        """Give away what places there are by now, and have all who wait look again."""
        places = 0 if self._is_held else self.replicas.places
        self._apply(self._line.resize(places, monotonic()))
        self._wake(self._places)

    @contextmanager
    def enter(self, ask: Ask, wait_max_s: float) -> Generator["Place"]:
        """Hold a place in the line for the length of the block, and wait so long at most.

        Yields:
            The place.

        Raises:
            Overloaded: as many wait as may.
            DeadlineUnmeetable: its client would be gone by then.
            NotServed: nobody serves the model, and nobody is about to.
        """
        self.refuse_if_failed()
        self._raise(self._line.enter(ask), ask)
        place = self._places[ask.id] = Place(self, self._line, ask, wait_max_s)
        self._count()
        if self.choose() is None:
            self.changed()
        try:
            yield place
        finally:
            del self._places[ask.id]
            self._unseated.pop(ask.id, None)
            self.used_s = monotonic()
            self._apply(self._line.leave(ask.id, self.used_s))
            if not (self._places and self._line.running_count):
                self.changed()

    def choose(self) -> WorkerView | None:
        """Choose a ready worker for a short call, whatever its places; None without one."""
        if self._is_held:
            return None
        ready = [view for view in self.replicas.views if view.is_ready]
        return min(ready, key=lambda view: view.requests_running, default=None)

    def refuse_if_failed(self) -> None:
        """Raise, if waiting for a worker is in vain.

        Raises:
            BramleyError: the model is not loaded, and will not be.
            NotServed: its workers do not start.
        """
        if error := self.refusal():
            raise error
        view = self.view
        if view.is_failed and not self._is_held:
            raise NotServed(view, f"does not start: {view.reason}")

    def compete(self, ask: Ask, tokens: int, chains: Sequence[bytes]) -> None:
        """Let a request of so many prompt tokens have its turn when it comes.

        Raises:
            DeadlineUnmeetable: its client would be gone before its first token.
        """
        stored = self._store.match(chains)
        held = max(self.replicas.row_tokens(chains), stored.ram + stored.ssd)
        rate = self.replicas.prefill_rate()
        prefill_s = (tokens - held) / rate if rate else 0.0
        self._raise(self._line.prepared(ask.id, tokens - held, prefill_s, monotonic()), ask)

    def begun(self, request: RequestId) -> None:
        """Note that its first token is there."""
        self._line.begun(request)

    def give_back(self, request: RequestId) -> None:
        """Have a request wait whose worker failed before its first token."""
        self._apply(self._line.give_back(request, monotonic()))
        if not self._line.running_count:
            self.changed()

    def take_suspects_turn(self, request: RequestId) -> bool:
        """Let one request at a time run of those under which a worker died.

        Returns:
            Whether it is this one.
        """
        self._suspect = self._suspect or request
        return self._suspect == request

    def end_suspects_turn(self) -> None:
        """Let the next one run."""
        self._suspect = None
        self._wake(self._places)

    def _raise(self, answer: QueueFull | TooLate | Changes | None, ask: Ask) -> None:
        match answer:
            case QueueFull(depth, retry_after_s):
                name = ask.priority.name.lower()
                raise Overloaded(
                    f"{depth} requests of class {name} wait for model {self.model!r} already",
                    facts={"model": self.model, "class": name, "depth": depth},
                    retry_after_s=retry_after_s,
                )
            case TooLate(needed_s, left_s):
                raise DeadlineUnmeetable(
                    f"its first token would come in {needed_s:.1f} s, and {left_s:.1f} s are left",
                    facts={"model": self.model, "estimate_s": f"{needed_s:.3f}"},
                    retry_after_s=RETRY_AFTER_S,
                )
            case Changes():
                self._apply(answer)
            case None:
                pass

    def _apply(self, changes: Changes) -> None:
        for request in changes.preempted:
            self._metrics.preemptions.inc()
            if place := self._places.get(request):
                place.preempt()
        self._wake(changes.granted)
        self._count()

    def _wake(self, requests: Iterable[RequestId]) -> None:
        for request in requests:
            if place := self._places.get(request):
                place.news.set()

    def choose_seat(
        self,
        ask: Ask,
        tokens: int,
        chains: Sequence[bytes],
        avoid: frozenset[str],
    ) -> Replica | None:
        """Choose the worker of a request whose turn it is; None if none is free yet."""
        self._unseated.pop(ask.id, None)
        stored = self._store.match(chains)
        choice = self.replicas.choose(tokens, monotonic(), chains, stored, avoid)
        if choice is None:
            self._unseated[ask.id] = self._places[ask.id]
            return None
        self._metrics.choices[choice.why].inc()
        return choice.replica

    def seats_changed(self) -> None:
        """Show what is booked, and have those look again who found no worker free."""
        self._metrics.set_booked(self.replicas.booked())
        self._wake(self._unseated)

    def _count(self) -> None:
        self._metrics.in_flight.set(self._line.running_count)
        for priority, gauge in self._metrics.queue_depth.items():
            gauge.set(self._line.waiting_of(priority))


def _turned(before: WorkerView, view: WorkerView) -> bool:
    return (before.epoch, before.is_ready, before.is_failed) != (
        view.epoch,
        view.is_ready,
        view.is_failed,
    )


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
        is_preempted: whether its place on a worker was taken from it.
    """

    def __init__(self, gate: Gate, line: Line, ask: Ask, wait_max_s: float) -> None:
        self._gate = gate
        self._line = line
        self._ask = ask
        self._left_s = wait_max_s
        self._tokens = 0  # of the prompt, from compete() on
        self._chains: Sequence[bytes] = ()
        self._failed_on: set[str] = set()  # incarnations
        self._end_call: Callable[[], object] | None = None
        self.news = asyncio.Event()
        self.is_preempted = False

    @property
    def position(self) -> int:
        """Requests before it in the queue."""
        return self._line.position(self._ask.id)

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

    def compete(self, prepared: worker_pb2.PrepareResponse) -> None:
        """Say that it is prepared: from now on, and until a worker fails it, its turn may come.

        Raises:
            DeadlineUnmeetable: it would come too late.
        """
        self.compete_for(len(prepared.token_ids_le) // TOKEN_BYTES, split(prepared.block_hashes))

    def compete_for(self, tokens: int, chains: Sequence[bytes] = ()) -> None:
        """Do so with so many tokens to compute, but for what is held of the ``chains``."""
        self._tokens, self._chains = tokens, chains
        self._gate.compete(self._ask, tokens, chains)

    @asynccontextmanager
    async def seat(self, answer_tokens: int) -> AsyncGenerator[Seat]:
        """Wait for a place on a ready worker, and hold it while the block lasts.

        Args:
            answer_tokens: that it may take at most.

        Yields:
            The place.

        Raises:
            NotServed: waiting is in vain.
            QueueTimeout: it has waited as long as it may.
        """
        replica: Replica | None = None
        while replica is None:
            if not self._line.is_running(self._ask.id):
                await self._wait()
                continue
            avoid = frozenset(self._failed_on)
            replica = self._gate.choose_seat(self._ask, self._tokens, self._chains, avoid)
            if replica is None:
                # A worker that is left alone may be tried by then, and nobody would tell.
                await self._wait(at_most_s=OPEN_MIN_S)
        self.is_preempted = False
        booked = self._gate.replicas.book(replica, self._tokens, answer_tokens, monotonic())
        try:
            with booked as seat:
                self._gate.seats_changed()
                yield seat
        finally:
            self._end_call = None
            self._gate.seats_changed()

    @asynccontextmanager
    async def suspects_turn(self) -> AsyncGenerator[None]:
        """Wait until no other suspect runs, and let none run while the block lasts.

        Yields:
            Once none does.

        Raises:
            NotServed: waiting is in vain.
            QueueTimeout: it has waited as long as it may.
        """
        while not self._gate.take_suspects_turn(self._ask.id):
            await self._wait()
        try:
            yield
        finally:
            self._gate.end_suspects_turn()

    def begun(self, seat: Seat) -> None:
        """Note that the first token is there: the place is kept."""
        seat.begun()
        self._gate.begun(self._ask.id)

    def has_other(self, view: WorkerView) -> bool:
        """Whether a ready worker is left that has not failed it, once ``view`` has."""
        ready = {one.incarnation for one in self._gate.replicas.views if one.is_ready}
        return bool(ready - self._failed_on - {view.incarnation})

    def failed(self, view: WorkerView) -> None:
        """Give its place back, as a worker failed it; when it competes again, others come first."""
        self._failed_on.add(view.incarnation)
        self.give_back()

    def give_back(self) -> None:
        """Give its place back; it is to compete again."""
        self._gate.give_back(self._ask.id)

    def on_preempt(self, end_call: Callable[[], object]) -> None:
        """Set what ends the call to the worker where the place is taken away."""
        self._end_call = end_call

    def preempt(self) -> None:
        """Take its place on a worker away; it waits again."""
        self.is_preempted = True
        if self._end_call is not None:
            self._end_call()

    async def _wait(self, at_most_s: float = inf) -> None:
        self._gate.refuse_if_failed()
        self.news.clear()
        started_s = monotonic()
        wait_s = min(self._left_s, at_most_s)
        try:
            async with asyncio.timeout(wait_s if wait_s < inf else None):
                await self.news.wait()
        except TimeoutError:
            if at_most_s >= self._left_s:
                raise _timed_out(self._gate, monotonic() - self._ask.entered_s) from None
        finally:
            self._left_s -= monotonic() - started_s


def _timed_out(gate: Gate, elapsed_s: float) -> BramleyError:
    # The reason tells a loading model from a long queue, and both from a lack of memory.
    if error := gate.timeout():
        return error
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
