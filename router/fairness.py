"""Takes turns between fairness keys, and deadline order within each (pure).

Start-time fair queueing: a request starts when its key's last one would have ended, had the key
a machine of its own, and not before now; the earliest start is next. A key that was away saves
up no claim, and one that asks ten times as much waits ten times as long.
"""

import heapq
import itertools
from dataclasses import dataclass, field

from bramley.common.ids import RequestId

_KEPT = 256  # more keys than that wait are remembered before some are forgotten


@dataclass(order=True, slots=True)
class _Waiting:
    deadline_s: float
    arrival: int
    id: RequestId = field(compare=False)
    cost: float = field(compare=False)
    is_gone: bool = field(default=False, compare=False)


class Turns:
    """Requests that compete for one thing; their costs are in any one unit."""

    def __init__(self) -> None:
        self._queues: dict[str, list[_Waiting]] = {}
        self._waiting: dict[RequestId, _Waiting] = {}
        self._ends: dict[str, float] = {}  # virtual; of each key's last request
        self._now = 0.0  # virtual
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def keys_count(self) -> int:
        """Keys that are remembered."""
        return len(self._queues.keys() | self._ends)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def add(self, request: RequestId, key: str, deadline_s: float, cost: float) -> None:
        """Let a request compete; ``cost`` is above 0, ``deadline_s`` infinite if it has none."""
        one = _Waiting(deadline_s, next(self._arrivals), request, cost)
        self._waiting[request] = one
        heapq.heappush(self._queues.setdefault(key, []), one)

    def discard(self, request: RequestId) -> None:
        """Forget a request; nothing happens if it does not compete."""
        if one := self._waiting.pop(request, None):
            one.is_gone = True

    def take(self) -> RequestId | None:
        """Take out who is next, and charge its key.

        Returns:
            The request, or None if nobody competes.
        """
        key = min(self._live_keys(), key=self._order, default=None)
        if key is None:
            return None
        one = heapq.heappop(self._queues[key])
        self._now = self._start(key)
        self._ends[key] = self._now + one.cost
        del self._waiting[one.id]
        self._forget()
        return one.id

    def charge(self, key: str, cost: float) -> None:
        """Charge a key for a request that did not wait for its turn here."""
        self._ends[key] = self._start(key) + cost

    def _live_keys(self) -> list[str]:
        for key, queue in list(self._queues.items()):
            while queue and queue[0].is_gone:
                heapq.heappop(queue)
            if not queue:
                del self._queues[key]
        return list(self._queues)

    def _order(self, key: str) -> tuple[float, _Waiting]:
        return self._start(key), self._queues[key][0]

    def _start(self, key: str) -> float:
        return max(self._ends.get(key, 0.0), self._now)

    def _forget(self) -> None:
        """Keep of keys only what may still count."""
        if not self._waiting:  # nobody is owed anything
            self._now = max(self._ends.values())
            self._ends.clear()
        elif len(self._ends) > 2 * len(self._queues) + _KEPT:
            self._ends = {key: end for key, end in self._ends.items() if end > self._now}
