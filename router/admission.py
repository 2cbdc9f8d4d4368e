"""Decides who of one model's requests runs, who waits and who is refused (pure).

A request enters, says when it is prepared, and leaves: whatever ended it. Each change goes
through one function that gives free places to the first prepared requests, in order of
arrival. Where a place is on several workers' account, router/routing.py chooses the worker:
the next file of a request's way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bramley.common.ids import RequestId

RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0


@dataclass(frozen=True)
class QueueFull:
    """The line is as long as it may be."""

    depth: int


@dataclass
class Line:
    """One model's requests, from entering to leaving.

    Attributes:
        queue_max: how many may wait.
        running_max: how many may run; 0 while no worker is ready.
    """

    queue_max: int
    running_max: int = 0
    # In order of arrival; True once prepared.
    _waiting: dict[RequestId, bool] = field(default_factory=dict[RequestId, bool])
    _running: set[RequestId] = field(default_factory=set[RequestId])

    def __repr__(self) -> str:
        return (
            f"<{len(self._running)} running of {self.running_max}, "
            f"{len(self._waiting)} waiting of {self.queue_max}>"
        )

    @property
    def running_count(self) -> int:
        """Requests that have a place on a worker."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Requests that have none yet."""
        return len(self._waiting)

    def is_running(self, request: RequestId) -> bool:
        """Whether it has been given a place."""
        return request in self._running

    def position(self, request: RequestId) -> int:
        """How many wait before it: 0 for the first, and for one that runs."""
        if request not in self._waiting:
            return 0
        return list(self._waiting).index(request)

    def enter(self, request: RequestId) -> QueueFull | None:
        """Take a request in, unless more would wait than may."""
        assert request not in self._waiting
        assert request not in self._running
        free = max(self.running_max - len(self._running), 0)
        if len(self._waiting) - free >= self.queue_max:
            return QueueFull(len(self._waiting))
        self._waiting[request] = False
        return None

    def prepared(self, request: RequestId) -> Sequence[RequestId]:
        """Let a request that entered compete for a place.

        Returns:
            Who may run from now on.
        """
        if request in self._waiting:
            self._waiting[request] = True
        return self._assign()

    def leave(self, request: RequestId) -> Sequence[RequestId]:
        """Forget a request, wherever it is.

        Returns:
            Who may run from now on.
        """
        self._waiting.pop(request, None)
        self._running.discard(request)
        return self._assign()

    def resize(self, running_max: int) -> Sequence[RequestId]:
        """Set how many may run; those that run go on even if they are more.

        Returns:
            Who may run from now on.
        """
        self.running_max = running_max
        return self._assign()

    def _assign(self) -> Sequence[RequestId]:
        free = self.running_max - len(self._running)
        if free <= 0:
            return ()
        ready = [request for request, prepared in self._waiting.items() if prepared][:free]
        for request in ready:
            del self._waiting[request]
            self._running.add(request)
        return ready


def retry_after_s(mean_run_s: float, running_max: int) -> float:
    """Estimate when a full line has room again: requests that run free a place in turn."""
    return min(max(mean_run_s / max(running_max, 1), RETRY_MIN_S), RETRY_MAX_S)
