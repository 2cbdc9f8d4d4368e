"""Chooses a worker among those that serve a model (pure).

A model has one worker today; the choice takes any number. What was chosen is carried out by
router/relay.py: the next file of a request's way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bramley.router.fleet import WorkerView


@dataclass(frozen=True)
class Candidate:
    """A worker, and how many requests the router itself has running there."""

    view: WorkerView
    booked: int

    @property
    def load(self) -> int:
        """Requests it has: its own report lags behind our bookings, so the greater counts."""
        return max(self.booked, self.view.requests_running + self.view.requests_waiting)


def choose_worker(candidates: Sequence[Candidate]) -> WorkerView | None:
    """Choose the least loaded ready worker.

    Returns:
        The first of the least loaded, or None if none is ready.
    """
    ready = [candidate for candidate in candidates if candidate.view.is_ready]
    if not ready:
        return None
    return min(ready, key=lambda candidate: candidate.load).view
