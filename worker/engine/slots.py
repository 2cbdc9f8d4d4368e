"""Seats: a request keeps one from admission to its end. Pure bookkeeping."""

from bramley.worker.request import Request


class Slots:
    """A fixed number of seats and who sits in each."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._count = count
        self._seated: dict[int, Request] = {}

    def __repr__(self) -> str:
        return f"{len(self._seated)} seated, {len(self._free)} free"

    def __getitem__(self, slot: int) -> Request:
        return self._seated[slot]

    @property
    def free(self) -> int:
        """Seats that nobody has."""
        return len(self._free)

    @property
    def seated(self) -> list[Request]:
        """Who sits, in order of arrival at their seats."""
        return list(self._seated.values())

    def seat(self, request: Request) -> int:
        """Give a request a free seat."""
        slot = self._free.pop()
        self._seated[slot] = request
        request.slot = slot
        return slot

    def leave(self, request: Request) -> None:
        """Take a request's seat back."""
        assert self._seated.pop(request.slot) is request
        self._free.append(request.slot)
        request.slot = -1

    def check(self) -> None:
        """Assert that every seat is either free or taken, once."""
        taken = {*self._free, *self._seated}
        assert len(taken) == self._count == len(self._free) + len(self._seated), repr(self)
