"""What goes first when room is short, and when a disk that failed is tried again."""

from collections.abc import Callable, Iterable

from bramley.cachestore.catalogue import Catalogue, Entry

BREAKER_MIN_S = 5.0
BREAKER_MAX_S = 300.0


def ram_victim(
    catalogue: Catalogue,
    is_leased: Callable[[str], bool],
    may_lose: Callable[[Entry], bool],
    now_s: float,
) -> Entry | None:
    """Choose whose bytes leave RAM: the least recently used that can be had again.

    Args:
        catalogue: of all.
        is_leased: whether a reader holds the object.
        may_lose: whether an object may go that is nowhere else; only leaves do.
        now_s: the time.

    Returns:
        The victim; it is lost if it is not on disk.
    """
    for entry in _free(catalogue.ram.values(), is_leased, now_s):
        if entry.on_disk or (may_lose(entry) and catalogue.is_leaf(entry)):
            return entry
    return None


def disk_victim(
    catalogue: Catalogue, is_leased: Callable[[str], bool], now_s: float
) -> Entry | None:
    """Choose whose file is removed: the least recently used that nothing follows from."""
    for entry in _free(catalogue.disk.values(), is_leased, now_s):
        if catalogue.is_leaf(entry):
            return entry
    return None


def _free(
    entries: Iterable[Entry], is_leased: Callable[[str], bool], now_s: float
) -> Iterable[Entry]:
    return (
        entry
        for entry in entries
        if not entry.holds and entry.pinned_until_s <= now_s and not is_leased(entry.id)
    )


class Breaker:
    """Keeps off a disk that is full or sick: for 5 s, then twice as long each time, at most 300."""

    def __init__(self) -> None:
        self._wait_s = 0.0
        self._until_s = 0.0

    def trip(self, now_s: float) -> None:
        """It failed."""
        self._wait_s = min(max(BREAKER_MIN_S, self._wait_s * 2), BREAKER_MAX_S)
        self._until_s = now_s + self._wait_s

    def close(self) -> None:
        """It works."""
        self._wait_s = self._until_s = 0.0

    @property
    def has_tripped(self) -> bool:
        """Whether the last try failed."""
        return self._wait_s > 0

    def remaining_s(self, now_s: float) -> float:
        """How long to wait until the next try."""
        return max(0.0, self._until_s - now_s)
