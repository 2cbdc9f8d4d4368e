"""Figures of a benchmark: medians of paired runs, what is required of them, and the table."""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import psutil

from bramley.client.commands.screen import print_json, print_table

BUSY_SHARE = 0.1  # of the machine, used by others: figures are worth less then


@dataclass(frozen=True, slots=True)
class Required:
    """What a ratio must be."""

    bound: Literal[">=", "<="]
    value: float

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio is on the right side."""
        return ratio >= self.value if self.bound == ">=" else ratio <= self.value

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"


@dataclass(slots=True)
class Figure:
    """Two sides measured in turn, and one number of both for each turn.

    Attributes:
        what: is measured, and of which model.
        unit: of both sides.
        sides: their names.
        ours: one value a turn.
        theirs: one value a turn, of the same turns.
        ratios: one a turn.
        required: of the median ratio, if anything is.
    """

    what: str
    unit: str
    sides: tuple[str, str]
    ours: list[float] = field(default_factory=list[float])
    theirs: list[float] = field(default_factory=list[float])
    ratios: list[float] = field(default_factory=list[float])
    required: Required | None = None

    def add(self, ours: float, theirs: float, ratio: float | None = None) -> None:
        """Add a turn; its ratio is ``ours / theirs`` unless told otherwise."""
        self.ours.append(ours)
        self.theirs.append(theirs)
        self.ratios.append(ours / theirs if ratio is None else ratio)

    @property
    def ratio(self) -> float:
        """The median over the turns."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """Whether it is as required."""
        if self.required is None:
            return ""
        return "ok" if self.required.is_met(self.ratio) else "MISSED"

    def cells(self) -> Sequence[str]:
        """A row of the table."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return (
            self.what,
            f"{self.sides[0]} {ours:.4g}",
            f"{self.sides[1]} {theirs:.4g}",
            self.unit,
            f"{self.ratio:.3f}",
            f"{min(self.ratios):.3f}..{max(self.ratios):.3f}",
            "" if self.required is None else str(self.required),
            self.verdict,
        )


HEADER = ("what", "one side", "the other", "unit", "ratio", "from..to", "required", "")


class Machine:
    """How much of the machine others use while this process and its children measure.

    Args:
        patience_s: for waiting until the others are quiet.
        measured: pids of what is measured and is no child of this process, such as a cluster.

    Attributes:
        patience_s: left of it.
    """

    def __init__(self, patience_s: float = 0.0, measured: Iterable[int] = ()) -> None:
        self.patience_s = patience_s
        self._me = psutil.Process()
        self._measured = [psutil.Process(pid) for pid in measured]
        self._mark()

    def rest(self, seconds: float) -> None:
        """Wait for so long, and longer while others are busy and there is patience."""
        look = Machine(measured=[process.pid for process in self._measured])
        time.sleep(seconds)
        while look.others_share() > BUSY_SHARE and self.patience_s > 0:
            time.sleep(seconds)
            self.patience_s -= seconds

    def _mark(self) -> None:
        self._at_s, self._all_s, self._own_s = time.monotonic(), _busy_s(), self.used_s()

    def used_s(self) -> float:
        """CPU time of what is measured, and of what of it has ended."""
        seconds = 0.0
        for process in (self._me, *self._me.children(recursive=True), *self._measured):
            times = process.cpu_times()
            ended_s = times.children_user + times.children_system
            seconds += times.user + times.system + ended_s
        return seconds

    def others_share(self) -> float:
        """Share of all cores that others had since the last call; 0 to 1."""
        all_s, own_s, at_s = self._all_s, self._own_s, self._at_s
        self._mark()
        passed_s = (self._at_s - at_s) * (psutil.cpu_count() or 1)
        others_s = self._all_s - all_s - max(self._own_s - own_s, 0.0)
        return min(max(others_s / max(passed_s, 1e-9), 0.0), 1.0)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def show(figures: Sequence[Figure], others: float, *, as_json: bool = False) -> None:
    """Print all figures, and how busy the machine was with other things.

    Args:
        figures: each with a turn at least.
        others: share of the machine that others had.
        as_json: one object on one line instead of a table.
    """
    if as_json:
        rows = [
            {**msgspec.to_builtins(one), "ratio": one.ratio, "verdict": one.verdict}
            for one in figures
        ]
        print_json({"others": others, "figures": rows})
        return
    print_table(HEADER, [one.cells() for one in figures])
    word = "busy" if others > BUSY_SHARE else "quiet"
    print(f"\nthe machine was {word}: others had {others:.0%} of it")
