"""Two runs on the same items: exact McNemar test, and the bootstrap of their difference."""

from collections.abc import Iterable, Sequence
from math import comb

import msgspec

from bramley.bench.eval.record import Record, Run
from bramley.bench.eval.sure import Interval, interval

ALL = "all"
_Key = tuple[str, str, str, str]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs' pairs say.

    Attributes:
        task: "all" for all tasks together, each item counted once.
        pairs: items that both judged, with equal hashes.
        unpaired: records of either run that have no pair.
        gained: wrong in the baseline and right in the run.
        lost: the other way round.
        difference: of the accuracies, run less baseline; None without pairs.
        difference_interval: of it, by drawing items anew; None where no pair differs, of which
            draws would say nothing.
        p: of the exact two-sided McNemar test: how likely so lopsided a change is by chance.
    """

    task: str
    pairs: int
    unpaired: int
    gained: int
    lost: int
    difference: float | None
    difference_interval: Interval | None
    p: float


def compare(run: Run, baseline: Run) -> list[Difference]:
    """Compare two runs task by task, and all of it together.

    Returns:
        One for each task of the run, and the last of all items.
    """
    told = [_compare(task, run.of(task), baseline.of(task)) for task in run.tasks]
    known = [record for task in run.tasks for record in baseline.of(task)]
    return [*told, _compare(ALL, run.records, known)]


def _compare(task: str, records: Sequence[Record], others: Sequence[Record]) -> Difference:
    mine, theirs = _judged(records), _judged(others)
    keys = [key for key in mine if key in theirs]
    changes = [mine[key] - theirs[key] for key in keys]
    gained, lost = changes.count(1), changes.count(-1)
    return Difference(
        task=task,
        pairs=len(keys),
        unpaired=len(records) + len(others) - 2 * len(keys),
        gained=gained,
        lost=lost,
        difference=sum(changes) / len(changes) if changes else None,
        difference_interval=interval(changes, [1] * len(changes)) if gained or lost else None,
        p=mcnemar(gained, lost),
    )


def _judged(records: Iterable[Record]) -> dict[_Key, bool]:
    return {
        (one.task, one.id, one.prompt_sha256, one.item_sha256): one.verdict == "right"
        for one in records
        if one.verdict != "error"
    }


def mcnemar(gained: int, lost: int) -> float:
    """Give the exact two-sided p: of ``gained + lost`` fair coins, so lopsided or more."""
    total = gained + lost
    tail = sum(comb(total, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**total)
