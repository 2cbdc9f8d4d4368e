"""What goes first when room is short, and when a disk that failed is tried again."""

from collections.abc import Callable, Iterable

from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.sessions import Rank

BREAKER_MIN_S = 5.0
BREAKER_MAX_S = 300.0


def ram_victim(
    catalogue: Catalogue,
    is_leased: Callable[[str], bool],
    may_lose: Callable[[Entry], bool],
    rank: Callable[[Entry], Rank],
    now_s: float,
) -> Entry | None:
    """Choose whose bytes leave RAM: of the lowest rank the least recently used.

    Args:
        catalogue: of all.
        is_leased: whether a reader holds the object.
        may_lose: whether an object may go that is nowhere else; only leaves do.
        rank: what open sessions make of it.
        now_s: the time.

    Returns:
        The victim; it is lost if it is not on disk.
    """
    return _lowest(
        rank,
        (
            entry
            for entry in _free(catalogue.ram.values(), is_leased, now_s)
            if entry.on_disk or (may_lose(entry) and catalogue.is_leaf(entry))
        ),
    )


def disk_victim(
    catalogue: Catalogue,
    is_leased: Callable[[str], bool],
    rank: Callable[[Entry], Rank],
    now_s: float,
) -> Entry | None:
    """Choose whose file is removed, in the same order: nothing follows from it."""
    free = _free(catalogue.disk.values(), is_leased, now_s)
    return _lowest(rank, (entry for entry in free if catalogue.is_leaf(entry)))


def _lowest(rank: Callable[[Entry], Rank], entries: Iterable[Entry]) -> Entry | None:
    """Find the first of the lowest rank; no more are looked at than it takes."""
    victim, lowest = None, Rank.NEWEST
    for entry in entries:
        at = rank(entry)
        if at is Rank.FREE:
            return entry
        if victim is None or at < lowest:
            victim, lowest = entry, at
    return victim


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
