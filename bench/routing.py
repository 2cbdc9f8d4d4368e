"""Policies of routing on a simulated agent trace: ``python -m bramley.bench.routing``.

Sessions of twenty turns, whose prompts grow, meet two or four workers of one model: each on a
machine of its own, with a store of its own, or all on one machine with one store. Time is
simulated; the deciders are the router's own (router/routing.py). Told are the share of prompt
tokens that were not computed, and the times to the first token.
"""

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bramley.client.commands.screen import print_table
from bramley.router.prefixes import BLOCK_TOKENS, Stored
from bramley.router.routing import RAM_SHARE, Replica, choose

SESSIONS_A_WORKER = 8
TURNS = 20
SYSTEM_TOKENS = 2048
THINK_S = 3.0
ANSWER_TOKENS = 120
PREFILL_RATE = 2000.0
STEP_S, ROW_S = 0.02, 0.002  # of a decode step, and for each row in it
ROWS = 8
SEEDS = 5
COUNTED = 3  # requests more than another: then a prefix draws no more


@dataclass(eq=False)
class Session:
    """A conversation, and how long its prompt is by now."""

    number: int
    turns_left: int = TURNS
    tokens: int = SYSTEM_TOKENS


@dataclass(eq=False)
class Store:
    """What one machine's store has: tokens of each session, by its number."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(eq=False)
class Worker:
    """A worker with as many rows as requests at a time; the ones that ended stay parked."""

    name: str
    store: Store
    rows: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    running: int = 0
    prefill_tokens: int = 0
    free_s: float = 0.0
    last_used: int = 0

    def sees(self, session: Session) -> Replica:
        """What the router knows of it, for a request of a session."""
        return Replica(
            name=self.name,
            places=ROWS,
            booked=0,  # a place is waited for inside
            requests=self.running,
            prefill_tokens=self.prefill_tokens,
            prefill_rate=PREFILL_RATE,
            row_tokens=_blocks(self.rows.get(session.number, 0)),
            stored=Stored(ram=_blocks(self.store.tokens.get(session.number, 0))),
            last_used=self.last_used,
        )


Policy = Callable[[Sequence[Worker], Session, int], Worker]


def _blocks(tokens: int) -> int:
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def round_robin(workers: Sequence[Worker], session: Session, number: int) -> Worker:
    """Each in turn."""
    del session
    return workers[number % len(workers)]


def least_loaded(workers: Sequence[Worker], session: Session, number: int) -> Worker:
    """The one with the fewest requests."""
    del session, number
    return min(workers, key=lambda worker: (worker.running, worker.last_used))


def prefix_only(workers: Sequence[Worker], session: Session, number: int) -> Worker:
    """The one that holds most of the prompt, whatever its load; else the least loaded."""
    best = max(workers, key=lambda worker: _held(worker, session))
    return best if _held(best, session) else least_loaded(workers, session, number)


def counted(workers: Sequence[Worker], session: Session, number: int) -> Worker:
    """As the router does, among those that have fewer than three requests more than another."""
    fewest = min(worker.running for worker in workers)
    near = [worker for worker in workers if worker.running < fewest + COUNTED]
    return ours(near, session, number)


def ours(workers: Sequence[Worker], session: Session, number: int) -> Worker:
    """As the router does."""
    del number
    choice = choose([worker.sees(session) for worker in workers], session.tokens)
    assert choice is not None
    return next(worker for worker in workers if worker.name == choice.replica.name)


POLICIES: dict[str, Policy] = {
    "round robin": round_robin,
    "least loaded": least_loaded,
    "prefix only": prefix_only,
    "by count": counted,
    "bramley": ours,
}


def _held(worker: Worker, session: Session) -> int:
    seen = worker.sees(session)
    return max(seen.row_tokens, seen.stored.ram)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run.

    Attributes:
        cached: share of the prompts' tokens that were not computed.
        ttft_s: of each request.
    """

    cached: float
    ttft_s: list[float]

    def percentile_s(self, percent: int) -> float:
        """Of the times to the first token."""
        return statistics.quantiles(self.ttft_s, n=100)[percent - 1]


class Simulation:
    """One trace under one policy."""

    def __init__(self, count: int, policy: Policy, seed: int, *, share_store: bool) -> None:
        self._random = random.Random(seed)  # noqa: S311 -- a trace, not a secret
        shared = Store()
        self._workers = [
            Worker(str(number), shared if share_store else Store()) for number in range(count)
        ]
        self._policy = policy
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._requests = itertools.count()
        self._asked = self._computed = 0
        self._ttft_s: list[float] = []

    def run(self) -> Outcome:
        """Go through the trace."""
        for number in range(SESSIONS_A_WORKER * len(self._workers)):
            self._later(self._random.random() * 10, self._turn(Session(number)))
        while self._events:
            now_s, _, act = heapq.heappop(self._events)
            act(now_s)
        return Outcome(1 - self._computed / self._asked, self._ttft_s)

    def _later(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), act))

    def _turn(self, session: Session) -> Callable[[float], None]:
        def begin(now_s: float) -> None:
            session.tokens += self._random.choice((120, 300, 700, 2000))
            worker = self._policy(self._workers, session, next(self._requests))
            self._serve(worker, session, now_s)

        return begin

    def _serve(self, worker: Worker, session: Session, now_s: float) -> None:
        held = worker.rows.pop(session.number, 0)
        restored = 0
        stored = _blocks(worker.store.tokens.get(session.number, 0))
        if stored > held:
            held = restored = stored
        compute = max(session.tokens - held, 1)
        worker.running += 1
        worker.last_used = next(self._numbers)
        worker.prefill_tokens += compute
        shared = 2.0 if worker.running > 1 else 1.0  # half of the time is for those that decode
        work_s = (compute * shared + restored * RAM_SHARE) / PREFILL_RATE
        worker.free_s = max(worker.free_s, now_s) + work_s
        self._asked += session.tokens
        self._computed += compute
        self._ttft_s.append(worker.free_s - now_s)
        self._later(worker.free_s, lambda at_s: self._decode(worker, session, compute, at_s))

    def _decode(self, worker: Worker, session: Session, computed: int, now_s: float) -> None:
        worker.prefill_tokens -= computed
        step_s = STEP_S + ROW_S * worker.running
        self._later(now_s + ANSWER_TOKENS * step_s, lambda at_s: self._end(worker, session, at_s))

    def _end(self, worker: Worker, session: Session, now_s: float) -> None:
        worker.running -= 1
        session.tokens += ANSWER_TOKENS
        worker.rows[session.number] = session.tokens
        while len(worker.rows) > ROWS - min(worker.running, ROWS - 1):
            worker.rows.popitem(last=False)
        worker.store.tokens[session.number] = session.tokens
        session.turns_left -= 1
        if session.turns_left:
            pause_s = self._random.expovariate(1 / THINK_S)
            self._later(now_s + pause_s, self._turn(session))


def measure(count: int, policy: Policy, *, share_store: bool) -> tuple[float, float, float]:
    """Run one policy over all seeds.

    Returns:
        Medians: cached share, and the 50th and 95th percentile of the time to the first token.
    """
    runs = [Simulation(count, policy, seed, share_store=share_store).run() for seed in range(SEEDS)]
    return (
        statistics.median(run.cached for run in runs),
        statistics.median(run.percentile_s(50) for run in runs),
        statistics.median(run.percentile_s(95) for run in runs),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if another policy has a better 95th percentile."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    rows: list[tuple[str, ...]] = []
    is_best = True
    for share_store, count in itertools.product((False, True), (2, 4)):
        found = {
            name: measure(count, policy, share_store=share_store)
            for name, policy in POLICIES.items()
        }
        is_best &= found["bramley"][2] <= min(p95 for _, _, p95 in found.values()) * 1.02
        where = "one store" if share_store else "a store each"
        rows += [
            (f"{count}, {where}", name, f"{cached:.1%}", f"{p50:.2f}", f"{p95:.2f}")
            for name, (cached, p50, p95) in found.items()
        ]
    print_table(("workers", "policy", "cached", "TTFT p50, s", "p95, s"), rows)
    return int(not is_best)


if __name__ == "__main__":
    sys.exit(main())
