"""Keeps requests off a worker that fails again and again, but for one probe (pure)."""

from typing import Literal

FAILURES_MAX = 3
OPEN_MIN_S = 1.0
OPEN_MAX_S = 30.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """Of one worker."""

    def __init__(self) -> None:
        self._failures = 0
        self._wait_s = 0.0
        self._until_s = 0.0
        self._is_probing = False

    def state(self, now_s: float) -> State:
        """Whether requests may be sent: all, none, or a probe."""
        if not self._wait_s:
            return "closed"
        return "open" if self._is_probing or now_s < self._until_s else "half_open"

    def sent(self, now_s: float) -> bool:
        """A request goes there.

        Returns:
            Whether it is the probe.
        """
        is_probe = self.state(now_s) == "half_open"
        self._is_probing = self._is_probing or is_probe
        return is_probe

    def succeeded(self) -> None:
        """It answered."""
        self.__init__()

    def failed(self, now_s: float, *, is_probe: bool) -> None:
        """It failed; while it is left alone, only what the probe says counts."""
        self._failures += 1
        if is_probe or (not self._wait_s and self._failures >= FAILURES_MAX):
            self._wait_s = min(max(OPEN_MIN_S, self._wait_s * 2), OPEN_MAX_S)
            self._until_s = now_s + self._wait_s
            self._is_probing = False

    def probe_left(self) -> None:
        """The probe ended, and may have told neither; the next request is one."""
        self._is_probing = False
