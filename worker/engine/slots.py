"""Seats: a request keeps one from admission to its end, and may leave its row parked there."""

from collections.abc import Sequence
from dataclasses import dataclass

from bramley.worker.cache.saved import Saving
from bramley.worker.request import Request


@dataclass(frozen=True, slots=True)
class Parked:
    """A finished request's row, kept until its seat is needed.

    Attributes:
        scope: root of the namespace that it may be reused in.
        tokens: those whose state the row holds.
        since: number of its parking; the smallest is the oldest.
        saving: how it is saved; None where it is not.
    """

    slot: int
    scope: bytes
    tokens: Sequence[int]
    since: int
    saving: Saving | None = None


class Slots:
    """A fixed number of seats, and who or what is in each. Pure bookkeeping."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._count = count
        self._seated: dict[int, Request] = {}
        self._parked: dict[int, Parked] = {}
        self._parkings = 0

    def __repr__(self) -> str:
        return f"{len(self._seated)} seated, {len(self._parked)} parked, {len(self._free)} free"

    def __getitem__(self, slot: int) -> Request:
        return self._seated[slot]

    @property
    def free(self) -> int:
        """Seats that nobody has and nothing is parked on."""
        return len(self._free)

    @property
    def seated(self) -> list[Request]:
        """Who sits, in order of arrival at their seats."""
        return list(self._seated.values())

    @property
    def parked(self) -> list[Parked]:
        """What is parked, the oldest first."""
        return list(self._parked.values())

    def seat(self, request: Request) -> int:
        """Give a request a free seat."""
        return self._sit(request, self._free.pop())

    def resume(self, request: Request, slot: int) -> Parked:
        """Give a request the seat of a parked row, row included; return what was parked."""
        parked = self._parked.pop(slot)
        self._sit(request, slot)
        return parked

    def park(self, request: Request) -> None:
        """Take a request's seat back, but leave its row."""
        slot, tokens = request.slot, request.tokens(0, request.computed)
        self._rise(request)
        self._parkings += 1
        self._parked[slot] = Parked(slot, request.scope, tokens, self._parkings, request.saving)

    def leave(self, request: Request) -> None:
        """Take a request's seat back."""
        self._free.append(request.slot)
        self._rise(request)

    def clear(self, slot: int) -> Parked:
        """Free the seat of a parked row; return what was parked."""
        self._free.append(slot)
        return self._parked.pop(slot)

    def check(self) -> None:
        """Assert that every seat is in one state."""
        taken = {*self._free, *self._seated, *self._parked}
        counted = len(self._free) + len(self._seated) + len(self._parked)
        assert len(taken) == self._count == counted, repr(self)

    def _sit(self, request: Request, slot: int) -> int:
        self._seated[slot] = request
        request.slot = slot
        return slot

    def _rise(self, request: Request) -> None:
        assert self._seated.pop(request.slot) is request
        request.slot = -1
