"""What workers report of their snapshots, as the router's own metrics. Pure."""

from collections.abc import Iterator, Mapping

from bramley.common.wire import short_name
from bramley.protos.v1 import cachestore_pb2, worker_pb2

OTHER = "other"  # what a newer worker says
_REFUSAL = cachestore_pb2.ReserveResponse.Refusal
REASONS = (
    *(short_name(_REFUSAL, value).lower() for value in _REFUSAL.values()[1:]),
    "store_lost",
    "rejected",
    "not_staged",
    "held_back",
    "state_gone",
    OTHER,
)
RESULTS = ("hit", "miss", "late", "failed", "away", OTHER)

News = Iterator[tuple[str, str, int]]


class Totals:
    """The totals of one model's workers, and what is new in each report."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, dict[tuple[str, str], int], int]] = {}

    @property
    def owed(self) -> int:
        """Conversations of which the cache store lacks something, by the newest reports."""
        return sum(owed for _, _, owed in self._of.values())

    def news(self, worker: str, epoch: int, load: worker_pb2.Load) -> News:
        """Take a report in.

        Args:
            worker: whose it is.
            epoch: of its incarnation, each of which counts from 0.
            load: the report.

        Yields:
            A metric's name, its label, and by how much it has grown.
        """
        before_epoch, before, _ = self._of.get(worker, (epoch, {}, 0))
        if epoch != before_epoch:
            before = {}
        now = dict(_totals(load))
        self._of[worker] = epoch, now, load.snapshots_owed
        for (name, label), total in now.items():
            grown = total - before.get((name, label), 0)
            if grown > 0:
                yield name, label, grown

    def gone(self, worker: str) -> None:
        """Owe nothing for a worker that is not there."""
        if worker in self._of:
            epoch, totals, _ = self._of[worker]
            self._of[worker] = epoch, totals, 0


def _totals(load: worker_pb2.Load) -> Iterator[tuple[tuple[str, str], int]]:
    yield ("snapshots_stored_total", ""), load.snapshots_stored
    yield from _labelled("snapshots_refused_total", load.snapshots_refused, REASONS)
    yield from _labelled("snapshots_lost_total", load.snapshots_lost, REASONS)
    yield from _labelled("cache_lookups_total", load.lookups, RESULTS)


def _labelled(
    name: str, totals: Mapping[str, int], known: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str], int]]:
    others = sum(total for label, total in totals.items() if label not in known)
    yield (name, OTHER), others + totals.get(OTHER, 0)
    for label, total in totals.items():
        if label in known and label != OTHER:
            yield (name, label), total
