"""Takes turns: between owners, between the keys of each, and by deadline within a key (pure).

Start-time fair queueing, twice: a request starts when its key's last one would have ended, had
the key a machine of its own, and not before now; the earliest start is next. A key that was away
saves up no claim, and one that asks ten times as much waits ten times as long. What an owner's
keys get is a share of the owner's, so that nobody has more by naming many.
"""

import heapq
import itertools
from dataclasses import dataclass, field

from bramley.common.ids import RequestId

Key = tuple[str, str]  # an owner, and a key of its
_KEPT = 256  # more keys than that wait are remembered before some are forgotten


@dataclass(order=True, slots=True)
class _Waiting:
    deadline_s: float
    arrival: int
    id: RequestId = field(compare=False)
    cost: float = field(compare=False)
    is_gone: bool = field(default=False, compare=False)


class _Clock:
    """The virtual time of some names that take turns."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[str, float] = {}  # of each name's last request

    @property
    def names(self) -> set[str]:
        """Those that are remembered."""
        return set(self._ends)

    def start(self, name: str) -> float:
        return max(self._ends.get(name, 0.0), self._now)

    def serve(self, name: str, cost: float) -> None:
        """Go on to the start of a request."""
        self._now = self.start(name)
        self._ends[name] = self._now + cost

    def charge(self, name: str, cost: float) -> None:
        self._ends[name] = self.start(name) + cost

    def forget(self, waiting: int) -> None:
        """Keep of names only those that may still count, where so many have requests."""
        if len(self._ends) > 2 * waiting + _KEPT:
            self._ends = {name: end for name, end in self._ends.items() if end > self._now}


class Turns:
    """Requests that compete for one thing; their costs are in any one unit."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, list[_Waiting]]] = {}  # of an owner's keys
        self._waiting: dict[RequestId, _Waiting] = {}
        self._owners = _Clock()
        self._keys: dict[str, _Clock] = {}  # of an owner's
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def keys_count(self) -> int:
        """Owners and keys that are remembered."""
        queued = {(owner, name) for owner, names in self._queues.items() for name in names}
        known = {(owner, name) for owner, clock in self._keys.items() for name in clock.names}
        return len(queued | known) + len(self._queues.keys() | self._owners.names)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def add(self, request: RequestId, key: Key, deadline_s: float, cost: float) -> None:
        """Let a request compete; ``cost`` is above 0, ``deadline_s`` infinite if it has none."""
        owner, name = key
        one = _Waiting(deadline_s, next(self._arrivals), request, cost)
        self._waiting[request] = one
        heapq.heappush(self._queues.setdefault(owner, {}).setdefault(name, []), one)

    def discard(self, request: RequestId) -> None:
        """Forget a request; nothing happens if it does not compete."""
        if one := self._waiting.pop(request, None):
            one.is_gone = True

    def take(self) -> RequestId | None:
        """Take out who is next, and charge its key and its owner.

        Returns:
            The request, or None if nobody competes.
        """
        self._drop_gone()
        owner = min(self._queues, key=self._order, default=None)
        if owner is None:
            return None
        name = self._next(owner)
        one = heapq.heappop(self._queues[owner][name])
        self._owners.serve(owner, one.cost)
        self._clock(owner).serve(name, one.cost)
        del self._waiting[one.id]
        self._forget(owner)
        return one.id

    def charge(self, key: Key, cost: float) -> None:
        """Charge a key for a request that did not wait for its turn here."""
        owner, name = key
        self._owners.charge(owner, cost)
        self._clock(owner).charge(name, cost)

    def _clock(self, owner: str) -> _Clock:
        return self._keys.setdefault(owner, _Clock())

    def _drop_gone(self) -> None:
        for owner, queues in list(self._queues.items()):
            for name, queue in list(queues.items()):
                while queue and queue[0].is_gone:
                    heapq.heappop(queue)
                if not queue:
                    del queues[name]
            if not queues:
                del self._queues[owner]

    def _order(self, owner: str) -> tuple[float, _Waiting]:
        return self._owners.start(owner), self._queues[owner][self._next(owner)][0]

    def _next(self, owner: str) -> str:
        queues, clock = self._queues[owner], self._clock(owner)
        return min(queues, key=lambda name: (clock.start(name), queues[name][0]))

    def _forget(self, owner: str) -> None:
        if not self._waiting:  # nobody is owed anything
            self._owners, self._keys = _Clock(), {}
            return
        self._owners.forget(len(self._queues))
        self._clock(owner).forget(len(self._queues[owner]))
        for idle in self._keys.keys() - self._queues.keys():
            del self._keys[idle]
