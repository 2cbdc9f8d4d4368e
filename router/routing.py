"""Chooses a worker among those that serve a model, by the seconds that each would take (pure).

A prompt that a worker has in a row costs nothing there, one that its store has a little, and
what waits there has to be computed before. So a prefix draws requests until the worker that
has it has too much to do, and no longer. Who keeps failing is left alone, unless nobody else is
there. What was chosen is carried out by router/relay.py: the next file of a request's way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bramley.router.breaker import State
from bramley.router.prefixes import NOTHING, Stored

PREFILL_RATE = 1000.0  # tokens a second, until one is measured
RAM_SHARE, SSD_SHARE = 1 / 40, 1 / 25  # of recomputing: what restoring took where it was measured
WORK_WEIGHT = 3.0  # computing something again also delays those that come after it
PRESSURE_S = 1.0  # what a full worker is worse than an empty one

Why = Literal["only", "prefix", "load", "spill", "probe", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A ready worker, and what it would be to one request.

    Attributes:
        name: of the worker.
        places: requests that it takes at a time.
        booked: requests that we have there.
        requests: that it has by its own report, or as booked: the greater.
        prefill_tokens: that wait there to be computed.
        prefill_rate: tokens a second, measured; 0 if unknown.
        row_tokens: of the prompt, in one of its rows.
        stored: of the prompt, in its node's cache store.
        breaker: whether it keeps failing.
        last_used: rises with each request that any worker of the model is given.
    """

    name: str
    places: int = 8
    booked: int = 0
    requests: int = 0
    prefill_tokens: int = 0
    prefill_rate: float = 0.0
    row_tokens: int = 0
    stored: Stored = NOTHING
    breaker: State = "closed"
    last_used: int = 0

    def uncached(self, prompt_tokens: int) -> int:
        """Tokens of the prompt that it would have to compute; one at least."""
        held = max(self.row_tokens, self.stored.ram + self.stored.ssd)
        return max(prompt_tokens - held, 1)

    def work(self, prompt_tokens: int) -> float:
        """Price the prompt there, in tokens to compute."""
        work = float(self.uncached(prompt_tokens))
        if self.stored.ram + self.stored.ssd > self.row_tokens:
            work += self.stored.ram * RAM_SHARE + self.stored.ssd * SSD_SHARE
        return work

    def cost_s(self, prompt_tokens: int) -> float:
        """Estimate the time to the first token there, and the drag on others."""
        rate = self.prefill_rate or PREFILL_RATE
        pressure_s = PRESSURE_S * self.requests / max(self.places, 1)
        work = self.prefill_tokens + WORK_WEIGHT * self.work(prompt_tokens)
        return work / rate + pressure_s


@dataclass(frozen=True, slots=True)
class Choice:
    """Which worker, and what decided."""

    replica: Replica
    why: Why


def choose(replicas: Sequence[Replica], prompt_tokens: int) -> Choice | None:
    """Choose the worker of a request.

    Args:
        replicas: the ready workers of its model.
        prompt_tokens: of the request.

    Returns:
        The one that costs least; None if all are full, or there is none.
    """
    free = [one for one in replicas if one.booked < one.places]
    probes = [one for one in free if one.breaker == "half_open"]
    if probes:
        return Choice(probes[0], "probe")
    healthy = [one for one in free if one.breaker == "closed"]
    if not healthy:
        if any(one.breaker == "closed" for one in replicas):
            return None  # one that works has no place now
        return Choice(min(free, key=_by_load), "last") if free else None
    return _cheapest(healthy, prompt_tokens)


def _cheapest(replicas: Sequence[Replica], prompt_tokens: int) -> Choice:
    def order(one: Replica) -> tuple[float, int, int, str]:
        return (one.cost_s(prompt_tokens), *_by_load(one))

    if len(replicas) == 1:
        return Choice(replicas[0], "only")
    best = min(replicas, key=order)
    works = [one.work(prompt_tokens) for one in replicas]
    if min(works) == max(works):
        return Choice(best, "load")
    return Choice(best, "prefix" if best.work(prompt_tokens) == min(works) else "spill")


def _by_load(one: Replica) -> tuple[int, int, str]:
    return one.requests, one.last_used, one.name
