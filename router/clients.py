"""Limits of each client, told apart by fairness key: requests a minute, requests at once (pure)."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
_MINUTE_S = 60.0
_RETRY_S = 1.0
_KEPT = 4096


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client may ask; those that name no fairness key are one client together.

    Attributes:
        requests_per_minute: on average, with so many at once after a quiet minute; 0 for any.
        requests_max: in flight, waiting ones included; 0 for any. Requests without a key are one
            client's together.
    """

    requests_per_minute: Count = 0
    requests_max: Count = 0


@dataclass(frozen=True, slots=True)
class TooMany:
    """A limit is reached; ``reason`` names it."""

    reason: str
    limit: int
    retry_after_s: float


class Clients:
    """Who has how much in flight, and when each is within its rate again."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._paid_s: dict[str, float] = {}  # until when each has used its rate up
        self._kept_max = _KEPT

    def __len__(self) -> int:
        return len(self._in_flight.keys() | self._paid_s)

    def enter(self, key: str, now_s: float, limits: ClientLimits) -> TooMany | None:
        """Count a request in, unless one of its client's limits is reached.

        Returns:
            Which one; else ``leave`` is to be called once.
        """
        most = limits.requests_max
        if most and self._in_flight[key] >= most:
            return TooMany("CLIENT_CONCURRENCY", most, _RETRY_S)
        if rate := limits.requests_per_minute:
            gap_s = _MINUTE_S / rate
            paid_s = max(self._paid_s.get(key, 0.0), now_s)
            wait_s = paid_s + gap_s - (now_s + _MINUTE_S)
            if wait_s > 1e-9:  # rounding of sums
                return TooMany("CLIENT_RATE", rate, wait_s)
            self._paid_s[key] = paid_s + gap_s
            self._forget(now_s)
        self._in_flight[key] += 1
        return None

    def leave(self, key: str) -> None:
        """Count a request out."""
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key]

    def _forget(self, now_s: float) -> None:
        if len(self._paid_s) > self._kept_max:
            self._paid_s = {key: at_s for key, at_s in self._paid_s.items() if at_s > now_s}
            self._kept_max = max(_KEPT, 2 * len(self._paid_s))  # looked through seldom
