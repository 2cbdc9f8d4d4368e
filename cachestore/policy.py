"""What an object is worth keeping, and when a disk that failed is tried again. Pure.

An object is worth the seconds that computing it anew would take, for each MiB that it takes
meanwhile, as often as it was used lately.
"""

from bramley.cachestore.objects import StoredObject

BREAKER_MIN_S = 5.0
BREAKER_MAX_S = 300.0

HITS_MAX = 8.0  # uses that count; what was used ever so often leaves some day
HALF_LIFE_S = 3600.0  # of a use
DEPTH_TOKENS = 16384  # so deep, attention takes about as long as all else
STATE_TOKENS = 2048  # between two states of a long prompt
MIB = 1 << 20

HIGH, LOW = 0.9, 0.8  # of the budget: room is made from the one down to the other


def shortage(size: int, used: int, budget: int, free: int, floor: int) -> int:
    """Say how many bytes have to leave before ``size`` more are written.

    Args:
        size: in bytes, as all of them.
        used: of the folder.
        budget: that it may take.
        free: on the volume.
        floor: to be left free there.

    Returns:
        0 if there is room.
    """
    return max(0, used + size - budget, size + floor - free)


def worth(stored: StoredObject, prefill_rate: float) -> float:
    """Price an object.

    Args:
        stored: the object.
        prefill_rate: of its namespace, tokens a second.

    Returns:
        Seconds to compute it anew, for each MiB.
    """
    end = stored.first_token + stored.tokens
    tokens = min(end, STATE_TOKENS) if stored.kind == "state" else stored.tokens
    depth = end - tokens
    seconds = tokens * (1 + depth / DEPTH_TOKENS) / prefill_rate
    return seconds / stored.payload_bytes * MIB


def hits_after(hits: float, idle_s: float) -> float:
    """Count one more use, after ``idle_s`` without any."""
    return min(HITS_MAX, 1 + hits * 0.5 ** (idle_s / HALF_LIFE_S))


class Breaker:
    """Keeps off a disk that is full or sick: for 5 s, then twice as long each time, at most 300.

    Attributes:
        is_full: whether the last try found no room, rather than a fault.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._wait_s = 0.0
        self._until_s = 0.0

    def trip(self, now_s: float, *, is_full: bool) -> None:
        """It failed."""
        self.is_full = is_full
        self._wait_s = min(max(BREAKER_MIN_S, self._wait_s * 2), BREAKER_MAX_S)
        self._until_s = now_s + self._wait_s

    def close(self) -> None:
        """It works."""
        self._wait_s = self._until_s = 0.0
        self.is_full = False

    @property
    def has_tripped(self) -> bool:
        """Whether the last try failed."""
        return self._wait_s > 0

    def remaining_s(self, now_s: float) -> float:
        """How long to wait until the next try."""
        return max(0.0, self._until_s - now_s)
