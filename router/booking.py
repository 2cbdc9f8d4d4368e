"""What a worker has been promised: booked before dispatch, released in one place (pure).

A worker's own report lags behind what was just sent to it; these sums do not.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Ledger:
    """Sums over a worker's requests that have not been released.

    Attributes:
        requests: how many.
        prefill_tokens: of their prompts, those that are still to be computed.
        memory_bytes: that their rows will take at most, as far as the worker says.
    """

    requests: int = 0
    prefill_tokens: int = 0
    memory_bytes: int = 0

    @contextmanager
    def book(self, prefill_tokens: int, memory_bytes: int) -> Generator["Booking"]:
        """Book one request for the length of the block.

        Yields:
            The booking; its prompt is taken off earlier, by ``begun``.
        """
        booking = Booking(self, prefill_tokens)
        self.requests += 1
        self.prefill_tokens += prefill_tokens
        self.memory_bytes += memory_bytes
        try:
            yield booking
        finally:
            booking.begun()
            self.requests -= 1
            self.memory_bytes -= memory_bytes


class Booking:
    """One request's part of a ledger."""

    def __init__(self, ledger: Ledger, prefill_tokens: int) -> None:
        self._ledger = ledger
        self._prefill_tokens = prefill_tokens

    def begun(self) -> None:
        """Note that its prompt is computed; the first time counts."""
        self._ledger.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0
