"""Finds a row of this engine that has computed the beginning of a prompt already. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bramley.worker.engine.slots import Parked
from bramley.worker.request import Request

SHARE_FROM = 16  # fewer tokens are computed sooner than looked for


@dataclass(frozen=True, slots=True)
class Source:
    """A row to start from.

    Attributes:
        tokens: of the prompt that the row holds, from its first on.
        is_parked: it is of no other use, and can be taken over.
    """

    slot: int
    tokens: int
    is_parked: bool


def find_source(
    request: Request,
    seated: Iterable[Request],
    parked: Iterable[Parked],
    can_cut: Callable[[int, int], bool],
) -> Source | None:
    """Find the row that saves a request most.

    Args:
        request: about to be seated.
        seated: requests whose rows may be copied.
        parked: rows that may be taken over.
        can_cut: whether a slot's row can be cut back to so many tokens.

    Returns:
        The best row, if it saves more than what would be restored, or as much and is parked,
        since that costs no copy.
    """
    restored = request.restore.tokens if request.restore is not None else 0
    wanted = request.tokens(0, len(request.prompt) + len(request.output) - 1)
    best: Source | None = None
    for source in _sources(request, wanted, seated, parked):
        least = max(SHARE_FROM, restored + (not source.is_parked))
        enough = source.tokens >= (1 if _leads(request, source) else least)
        if not enough or not can_cut(source.slot, source.tokens):
            continue
        if best is None or (source.tokens, source.is_parked) > (best.tokens, best.is_parked):
            best = source
    return best


def _sources(
    request: Request, wanted: Sequence[int], seated: Iterable[Request], parked: Iterable[Parked]
) -> Iterator[Source]:
    for other in seated:
        # A first token has proved that a row is sound; a leader's followers share its fate.
        shares = request.scope and other.scope == request.scope and other.output
        if other is request.leader or shares:
            held = other.tokens(0, other.computed)
            yield Source(other.slot, common(wanted, held), is_parked=False)
    for row in parked:
        if request.scope and row.scope == request.scope:
            yield Source(row.slot, common(wanted, row.tokens), is_parked=True)


def _leads(request: Request, source: Source) -> bool:
    leader = request.leader
    return leader is not None and not source.is_parked and leader.slot == source.slot


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens, or bytes, two sequences share from their start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
