"""What one step does: data between scheduler, executor and engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admission:
    """Who takes a seat now.

    Attributes:
        preempt: slots of bulk requests that go back to the queue first.
        seat: ids of waiting requests, in the order in which they are seated.
    """

    preempt: tuple[int, ...] = ()
    seat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """So many of a slot's next prompt tokens are computed."""

    slot: int
    tokens: int
