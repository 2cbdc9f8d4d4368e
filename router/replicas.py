"""A model's workers as requests see them: what each has, holds and fails at."""

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bramley.common.ids import WorkerName
from bramley.protos.v1 import types_pb2
from bramley.router.booking import Booking, Ledger
from bramley.router.breaker import Breaker, State
from bramley.router.fleet import WorkerView
from bramley.router.prefixes import NOTHING, Stored, row_tokens
from bramley.router.routing import Choice, Replica, choose


@dataclass
class _Worker:
    view: WorkerView
    ledger: Ledger = field(default_factory=Ledger)
    breaker: Breaker = field(default_factory=Breaker)
    last_used: int = 0


class Replicas:
    """The workers of one model.

    Args:
        running_max: requests on one at a time; None takes each worker's own limit.

    Attributes:
        running_max: as given; it may change.
    """

    def __init__(self, running_max: int | None) -> None:
        self.running_max = running_max
        self._workers: dict[WorkerName, _Worker] = {}
        self._uses = itertools.count(1)

    @property
    def views(self) -> list[WorkerView]:
        """What is known of each."""
        return [worker.view for worker in self._workers.values()]

    def breakers(self, now_s: float) -> dict[WorkerName, State]:
        """Tell the state of each worker's breaker."""
        return {name: worker.breaker.state(now_s) for name, worker in self._workers.items()}

    @property
    def some_failed(self) -> bool:
        """Whether waiting is in vain for at least one."""
        return any(view.is_failed for view in self.views)

    @property
    def places(self) -> int:
        """Requests that the ready ones take at a time."""
        return sum(self._places(view) for view in self.views if view.is_ready)

    def clear(self) -> None:
        """Forget all: the model has other workers from now on."""
        self._workers.clear()

    def update(self, view: WorkerView) -> WorkerView | None:
        """Take in what is now known of one, and return what was known before."""
        worker = self._workers.get(view.worker)
        if worker is None:
            self._workers[view.worker] = _Worker(view)
            return None
        before, worker.view = worker.view, view
        if before.epoch != view.epoch:
            worker.breaker = Breaker()
        return before

    def choose(
        self,
        prompt_tokens: int,
        now_s: float,
        chains: Sequence[bytes] = (),
        stored: Stored = NOTHING,
        avoid: frozenset[str] = frozenset(),
    ) -> Choice | None:
        """Choose a ready worker for a prompt.

        Args:
            prompt_tokens: of the request.
            now_s: the time.
            chains: hashes of the prompt's whole blocks.
            stored: what the cache store has of it.
            avoid: incarnations that it failed on; taken only if there is no other.

        Returns:
            The choice; None if none is ready and has a place.
        """
        ready = [worker for worker in self._workers.values() if worker.view.is_ready]
        others = [one for one in ready if one.view.incarnation not in avoid]
        made = [self._replica(one, now_s, chains, stored) for one in others or ready]
        return choose(made, prompt_tokens)

    def _replica(
        self, worker: _Worker, now_s: float, chains: Sequence[bytes], stored: Stored
    ) -> Replica:
        view, ledger, load = worker.view, worker.ledger, worker.view.load
        rows = load.row_chains if load and chains else ()
        return Replica(
            name=view.worker,
            places=self._places(view),
            booked=ledger.requests,
            requests=max(ledger.requests, view.requests_running + view.requests_waiting),
            prefill_tokens=max(ledger.prefill_tokens, load.prompt_tokens_waiting if load else 0),
            prefill_rate=load.prefill_rate if load else 0.0,
            row_tokens=row_tokens(chains, rows),
            stored=stored,
            breaker=worker.breaker.state(now_s),
            last_used=worker.last_used,
        )

    @contextmanager
    def book(
        self, replica: Replica, prompt_tokens: int, answer_tokens: int, now_s: float
    ) -> Generator["Seat"]:
        """Hold a place on a worker that was chosen, for the length of the block.

        Yields:
            The place.
        """
        worker = self._workers[WorkerName(replica.name)]
        worker.last_used = next(self._uses)
        breaker = worker.breaker
        is_probe = breaker.sent(now_s)
        memory = _memory(worker.view.limits, prompt_tokens + answer_tokens)
        try:
            with worker.ledger.book(replica.uncached(prompt_tokens), memory) as booking:
                yield Seat(worker.view, booking, breaker, is_probe)
        finally:
            if is_probe:
                breaker.probe_left()

    def booked(self) -> Ledger:
        """What all of them are promised together."""
        ledgers = [worker.ledger for worker in self._workers.values()]
        return Ledger(
            sum(ledger.requests for ledger in ledgers),
            sum(ledger.prefill_tokens for ledger in ledgers),
            sum(ledger.memory_bytes for ledger in ledgers),
        )

    def row_tokens(self, chains: Sequence[bytes]) -> int:
        """Leading tokens of a prompt in a row of a ready worker: the most that any of them has."""
        loads = [view.load for view in self.views if view.is_ready]
        return max((row_tokens(chains, load.row_chains) for load in loads if load), default=0)

    def prefill_rate(self) -> float:
        """Tokens a second of the fastest ready worker; 0 if unknown."""
        loads = [view.load for view in self.views if view.is_ready]
        return max((load.prefill_rate for load in loads if load), default=0.0)

    def _places(self, view: WorkerView) -> int:
        return self.running_max or (view.limits.max_rows if view.limits else 0) or 1


@dataclass(frozen=True, slots=True)
class Seat:
    """A place on one incarnation of a worker, and what is booked there."""

    view: WorkerView
    booking: Booking
    breaker: Breaker
    is_probe: bool

    def begun(self) -> None:
        """Note that the first token is there: the worker works, and the prompt is computed."""
        self.booking.begun()
        self.breaker.succeeded()

    def failed(self, now_s: float) -> None:
        """Note that the worker failed."""
        self.breaker.failed(now_s, is_probe=self.is_probe)


def _memory(limits: types_pb2.ModelLimits | None, tokens: int) -> int:
    """Predict what a row of so many tokens takes, as far as its worker says."""
    return limits.row_bytes + limits.token_bytes * tokens if limits else 0
