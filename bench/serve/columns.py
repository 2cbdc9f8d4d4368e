"""What was measured of one arm over all runs, and how it stands against another arm.

Runs of several seeds make one column only if nothing else about them differs: machine, model,
workload, sources, and the arm's own versions and settings. What differs is a column of its own.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bramley.bench.serve.bootstrap import BLOCKS_MIN, geometric_mean, interval
from bramley.bench.serve.compare import (
    Reason,
    Side,
    Why,
    answer_differs,
    machine,
    model,
    ratios,
)
from bramley.bench.serve.record import Arm, Request, Run

PARITY = "parity"  # the phase of the probes


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of several samples."""

    median: float
    low: float
    high: float
    samples: int


class Against(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One column divided by another.

    Attributes:
        ratio: geometric mean over seeds; of a seed, the median of its pairs. None: suppressed.
        low: where the ratio is with 95 %, if there are seeds enough to say so.
        high: likewise.
        seeds: that have a ratio.
        pairs: of samples in these.
        reasons: why there is no ratio, or why some seeds have none.
        unsure: why there is no interval; empty where there is one.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    pairs: int = 0
    reasons: list[str] = []
    unsure: str = ""


class Parity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many of the probes one column answers as another does.

    Attributes:
        arm: the column's name.
        same: answers with equal texts.
        asked: probes that both were asked.
        differ: what differs, of each of the others.
    """

    arm: str
    same: int
    asked: int
    differ: list[str]


@dataclass(frozen=True, slots=True)
class Column:
    """One arm, in all runs that measured the very same thing.

    Attributes:
        name: the arm's; with a number behind it where several columns are of that name.
        sides: one a run, by seed.
    """

    name: str
    sides: Sequence[Side]

    @property
    def arm(self) -> Arm:
        """Any of its arms: for what all of them have in common."""
        return self.sides[0].arm

    @property
    def run(self) -> Run:
        """Any of its runs: likewise."""
        return self.sides[0].run

    def values(self, metric: str) -> list[float]:
        """All samples of a metric, of all runs."""
        return [sample.value for side in self.sides for sample in side.samples(metric)]

    def spread(self, metric: str) -> Spread | None:
        """Tell the median of all samples, and how far they are apart."""
        if not (values := self.values(metric)):
            return None
        return Spread(
            median=statistics.median(values),
            low=min(values),
            high=max(values),
            samples=len(values),
        )

    def seeds(self) -> dict[int, list[Side]]:
        """Sort its runs by seed; a seed that was run twice is no second block."""
        found: dict[int, list[Side]] = {}
        for side in self.sides:
            found.setdefault(side.run.seed, []).append(side)
        return found


def columns(runs: Sequence[Run]) -> list[Column]:
    """Sort all runs' arms into columns, in the order in which they are first seen."""
    once = {run.id: run for run in runs}.values()
    found: dict[str, dict[bytes, list[Side]]] = {}
    for run in once:
        for arm in run.arms:
            found.setdefault(arm.name, {}).setdefault(_what(run, arm), []).append(Side(run, arm))
    return [
        Column(name if len(kinds) == 1 else f"{name} ({number})", sides)
        for name, kinds in found.items()
        for number, sides in enumerate(kinds.values(), 1)
    ]


def _what(run: Run, arm: Arm) -> bytes:
    """Tell what exactly was measured, whatever the seed."""
    facts: list[Any] = [machine(run), model(run), run.workload, run.source.start]
    facts += [arm.kind, arm.versions, arm.blas, arm.settings]
    return msgspec.json.encode(facts, order="deterministic")


def against(ours: Column, theirs: Column, metric: str, slack: int = 0) -> Against:
    """Divide one column by another, seed by seed; ``slack`` is of cached tokens."""
    blocks: dict[int, list[float]] = {}
    reasons: dict[Reason, list[int]] = {}
    for seed, mine, other in _pairs(ours, theirs):
        for one in ratios(mine, other, metric, slack=slack):
            if isinstance(one, Reason):
                reasons.setdefault(one, []).append(seed)
            else:
                blocks.setdefault(seed, []).append(one)
    if not blocks and not reasons:
        words = f"no run of {ours.name} has the seed of a run of {theirs.name}"
        return Against(reasons=[f"{Why.SEED}: {words}"])
    told = [_tell(reason, seeds, ours) for reason, seeds in reasons.items()]
    pairs = sum(map(len, blocks.values()))
    return _sum_up([statistics.median(block) for block in blocks.values()], pairs, told)


def _pairs(ours: Column, theirs: Column) -> Iterator[tuple[int, Side, Side]]:
    """Pair runs by seed; both arms of one run rather than arms of two.

    Yields:
        The seed, and a run of each.
    """
    others = theirs.seeds()
    for seed, mine in ours.seeds().items():
        for side in mine:
            found = others.get(seed, [])
            same = (other for other in found if other.run.id == side.run.id)
            if other := next(same, found[0] if found else None):
                yield seed, side, other


def _tell(reason: Reason, seeds: Sequence[int], column: Column) -> str:
    words = f"{reason.kind}: {reason.words}"
    if len(column.seeds()) == 1:
        return words
    return f"{words}; seed {', '.join(map(str, dict.fromkeys(seeds)))}"


def _sum_up(blocks: Sequence[float], pairs: int, reasons: list[str]) -> Against:
    if not blocks:
        return Against(reasons=reasons)
    found = interval(blocks)
    return Against(
        ratio=geometric_mean(blocks),
        low=found and found.low,
        high=found and found.high,
        seeds=len(blocks),
        pairs=pairs,
        reasons=reasons,
        unsure="" if found else _unsure(len(blocks)),
    )


def _unsure(seeds: int) -> str:
    count = "one seed" if seeds == 1 else f"{seeds} seeds"
    return f"no interval: {count}, and {BLOCKS_MIN} are needed"


def parity(ours: Column, theirs: Column) -> Parity:
    """Compare the answers to what every arm is asked for this alone; caches do not matter."""
    asked, differ = 0, list[str]()
    for seed, mine, other in _pairs(ours, theirs):
        answers = {one.sha256: one for one in _probes(other)}
        for probe in _probes(mine):
            if probe.sha256 not in answers:
                continue
            asked += 1
            if reason := answer_differs(probe, answers[probe.sha256]):
                differ.append(f"seed {seed}, probe {probe.index}: {reason.words}")
    return Parity(arm=ours.name, same=asked - len(differ), asked=asked, differ=differ)


def _probes(side: Side) -> list[Request]:
    return [one for one in side.arm.requests if one.phase == PARITY and one.error is None]


def within(column: Column, above: str, below: str) -> Against:
    """Divide the medians of two metrics of one arm, run by run."""
    blocks: dict[int, float] = {}
    for side in column.sides:
        upper, lower = ([sample.value for sample in side.samples(name)] for name in (above, below))
        if upper and lower:
            ratio = statistics.median(upper) / (statistics.median(lower) or math.nan)
            if math.isfinite(ratio) and ratio > 0:
                blocks.setdefault(side.run.seed, ratio)
    if not blocks:
        return Against(reasons=[f"{Why.ABSENT}: {column.name} has not both, or one is 0"])
    return _sum_up(list(blocks.values()), len(blocks), [])
