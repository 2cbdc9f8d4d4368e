"""Which requests are tried on another worker, and which never again (pure)."""

from collections import OrderedDict

TRIES_MAX = 3  # workers that one request sees
EARNED = 0.1  # retries that each request earns for all
SAVED_MAX = 10.0
DEATHS_MAX = 2
REMEMBERED = 4096  # requests
REMEMBERED_S = 600.0


class RetryBudget:
    """Bounds retries to a tenth of the requests, with ten saved up: they never double a load."""

    def __init__(self) -> None:
        self._saved = SAVED_MAX

    def earn(self) -> None:
        """A request came."""
        self._saved = min(self._saved + EARNED, SAVED_MAX)

    def spend(self) -> bool:
        """Take a retry, if one is left."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class Suspects:
    """Requests under which a worker died, by a digest of what they ask.

    One death makes a suspect, which is tried beside no other suspect; a second one proves it.
    """

    def __init__(self) -> None:
        # who died of each, and when the last one did; the oldest first
        self._deaths: OrderedDict[bytes, tuple[frozenset[str], float]] = OrderedDict()

    def has_any(self, now_s: float) -> bool:
        """Whether anybody is suspected: as a rule nobody is, and nothing need be looked up."""
        while self._deaths and now_s - next(iter(self._deaths.values()))[1] >= REMEMBERED_S:
            self._deaths.popitem(last=False)
        return bool(self._deaths)

    def deaths(self, digest: bytes, now_s: float) -> int:
        """How many workers died under a request lately."""
        return len(self._dead(digest, now_s))

    def _dead(self, digest: bytes, now_s: float) -> frozenset[str]:
        dead, at_s = self._deaths.get(digest, (frozenset[str](), now_s))
        return dead if now_s - at_s < REMEMBERED_S else frozenset()

    def died(self, digest: bytes, worker: str, now_s: float) -> None:
        """A worker died under it; ``worker`` names the incarnation, which dies once."""
        self._deaths[digest] = (self._dead(digest, now_s) | {worker}, now_s)
        self._deaths.move_to_end(digest)
        if len(self._deaths) > REMEMBERED:
            self._deaths.popitem(last=False)

    def cleared(self, digest: bytes) -> None:
        """It ended well."""
        self._deaths.pop(digest, None)
