"""What a run of tasks comes to: accuracies, and how it differs from another run."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bramley.bench.eval.paired import Difference
from bramley.bench.eval.record import Record, Run, accuracy
from bramley.bench.eval.sure import Interval, wilson
from bramley.client.commands.screen import print_table


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Of one task.

    Attributes:
        accuracy: share of the judged items that are right; None without any.
        share: mean share of the right parts, where items have parts.
        cut: answers that ended at their longest length.
    """

    task: str
    items: int
    right: int
    errors: int
    cut: int
    accuracy: float | None
    accuracy_interval: Interval | None
    share: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run.

    Attributes:
        mean: of the tasks' accuracies, each task counted once; None where one has none.
        file: that has all of it.
    """

    scores: list[Score]
    mean: float | None
    differences: list[Difference]
    file: str


def score(task: str, records: Sequence[Record]) -> Score:
    """Sum up one task."""
    right = [record.verdict == "right" for record in records if record.verdict != "error"]
    shares = [record.share for record in records if record.share is not None]
    return Score(
        task=task,
        items=len(records),
        right=sum(right),
        errors=len(records) - len(right),
        cut=sum(record.finish == "length" for record in records if record.completion_tokens > 1),
        accuracy=accuracy(records),
        accuracy_interval=wilson(sum(right), len(right)),
        share=sum(shares) / len(shares) if shares else None,
    )


def summary(run: Run, differences: Sequence[Difference], file: Path) -> Summary:
    """Sum up a run."""
    scores = [score(task, run.of(task)) for task in run.tasks]
    known = [one.accuracy for one in scores if one.accuracy is not None]
    return Summary(
        scores=scores,
        mean=sum(known) / len(known) if len(known) == len(scores) else None,
        differences=list(differences),
        file=str(file),
    )


def show(run: Run, differences: Sequence[Difference], file: Path) -> None:
    """Print a run for people."""
    told = summary(run, differences, file)
    header = ("task", "items", "right", "accuracy", "95 % between", "parts", "cut off", "errors")
    print_table(header, [_cells(one) for one in told.scores])
    if len(told.scores) > 1 and told.mean is not None:
        print(f"\nmean of the tasks {told.mean:.1%}")
    if differences:
        print("\nagainst the baseline, on items that both were asked alike:")
        names = ("task", "pairs", "unpaired", "gained", "lost", "difference", "95 % between", "p")
        print_table(names, [_differs(one) for one in differences])
    print(f"\n{file}")


def _cells(one: Score) -> Sequence[str]:
    return (
        one.task,
        str(one.items),
        str(one.right),
        _percent(one.accuracy),
        _between(one.accuracy_interval),
        _percent(one.share),
        str(one.cut),
        str(one.errors),
    )


def _differs(one: Difference) -> Sequence[str]:
    return (
        one.task,
        *map(str, (one.pairs, one.unpaired, one.gained, one.lost)),
        "-" if one.difference is None else f"{one.difference:+.1%}",
        _between(one.difference_interval),
        f"{one.p:.3g}",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _between(bounds: Interval | None) -> str:
    return "-" if bounds is None else f"{bounds.low:.1%} .. {bounds.high:.1%}"
