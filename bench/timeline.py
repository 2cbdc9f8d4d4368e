"""When the tokens of several rows came, and how fast they came while all rows ran."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Timeline:
    """One run.

    Attributes:
        rows: when each token of each row came, in seconds on the monotonic clock.
        steps: when each step was over, and the CPU seconds of its thread by then, where known.
    """

    rows: Sequence[list[float]]
    steps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    @property
    def _span(self) -> tuple[float, float]:
        """From when every row has begun until one ends."""
        return max(row[0] for row in self.rows), min(row[-1] for row in self.rows)

    @property
    def rate(self) -> float:
        """Tokens a second of all rows together."""
        start_s, stop_s = self._span
        assert start_s < stop_s, "the rows never ran together: take more tokens"
        came = sum(start_s < at_s <= stop_s for row in self.rows for at_s in row)
        return came / (stop_s - start_s)

    @property
    def step_s(self) -> float:
        """Seconds a step, which gives each row a token."""
        return len(self.rows) / self.rate

    @property
    def cpu_s(self) -> float:
        """CPU seconds a step, of the thread that steps."""
        start_s, stop_s = self._span
        within = [cpu_s for at_s, cpu_s in self.steps if start_s <= at_s <= stop_s]
        return (within[-1] - within[0]) / (len(within) - 1)

    @property
    def longest_gap_s(self) -> float:
        """The longest that any row was without a token, once it had begun."""
        return max(later - earlier for row in self.rows for earlier, later in pairwise(row))
