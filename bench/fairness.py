"""What a long prompt does to others: ``python -m bramley.bench.fairness``, beside mlx_lm.server.

Two streams run; a prompt of 900 words arrives, and 0.3 s later a short request. Figures are the
short one's time to its first token, what the streams keep of their rate until the long prompt
is computed, and the longest that any of them stood still. Both systems take turns in one run, on
the same weights in float32 and the same BLAS.
"""

import argparse
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bramley.bench.cluster import Failed
from bramley.bench.figures import BUSY_SHARE, Machine
from bramley.bench.systems import System, our_cluster, peer_server
from bramley.client.commands.screen import print_json, print_table

STREAMS = 2
LONG_WORDS = 900
AFTER_S = 0.3
BEFORE_S = 4.0
PATIENCE_S = 300.0
CHUNK_S = 0.25
SHORT_MAX_S = 0.8
RATE_MIN = 0.45
GAP_MAX_S = 0.6
REST_S = 1.0
COUNTING = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, "


@dataclass(frozen=True, slots=True)
class Turn:
    """What was seen of one system, once.

    Attributes:
        idle_s: to the first token of a short request that is alone.
        short_s: of one that arrives while the long prompt is computed.
        long_s: of the long prompt itself.
        before: tokens a second of both streams, until the long prompt arrives.
        during: until its first token.
        gap_s: the longest that a stream stood still meanwhile.
    """

    idle_s: float
    short_s: float
    long_s: float
    before: float
    during: float
    gap_s: float

    @property
    def kept(self) -> float:
        """Share of their rate that the streams keep."""
        return self.during / self.before


class Running:
    """A stream that is read by a thread of its own; when each token came."""

    def __init__(self, system: System, prompt: str, max_tokens: int) -> None:
        self._asked = (prompt, max_tokens)
        self._system = system
        self._left = False
        self.start_s = time.monotonic()
        self.times: list[float] = []
        self._came = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with closing(self._system.stream(*self._asked)) as tokens:
            for count in tokens:
                self.times += [time.monotonic()] * count
                self._came.set()
                if self._left:
                    return

    def first_s(self) -> float:
        """Wait for the first token.

        Returns:
            How long it took.

        Raises:
            Failed: none comes.
        """
        if not self._came.wait(PATIENCE_S):
            raise Failed(f"{self._system.name} gave no token")
        return self.times[0] - self.start_s

    def leave(self) -> None:
        """Read one more token, and leave."""
        self._left = True
        self._thread.join(PATIENCE_S)

    def between(self, start_s: float, stop_s: float) -> list[float]:
        """When tokens came within a span, whose ends count as such."""
        return [start_s, *(at_s for at_s in self.times if start_s < at_s < stop_s), stop_s]


def short(system: System) -> Running:
    """Ask something short that nobody asked before."""
    return Running(system, f"Word {secrets.token_hex(2)} means", 2)


def measure(system: System) -> Turn:
    """Go through the scene once."""
    idle = short(system)
    idle_s = idle.first_s()
    idle.leave()
    streams = [Running(system, f"{number}. {COUNTING}", 2000) for number in range(STREAMS)]
    start_s = max(stream.start_s + stream.first_s() for stream in streams)
    time.sleep(max(start_s + BEFORE_S - time.monotonic(), 0.0))
    words = " ".join(
        secrets.choice(("stone", "river", "cloud", "field")) for _ in range(LONG_WORDS)
    )
    long = Running(system, f"{secrets.token_hex(4)} {words}", 2)
    time.sleep(AFTER_S)
    short_s = short(system).first_s()
    long_s = long.first_s()
    stop_s = long.start_s + long_s
    for stream in streams:
        stream.leave()
    if any(stream.times[-1] < stop_s for stream in streams):
        raise Failed(f"a stream of {system.name} ended too early")

    def rate(from_s: float, to_s: float) -> float:
        came = sum(len(stream.between(from_s, to_s)) - 2 for stream in streams)
        return came / (to_s - from_s)

    marks = [stream.between(long.start_s, stop_s) for stream in streams]
    gaps = [later - at_s for each in marks for at_s, later in pairwise(each)]
    before, during = rate(start_s, long.start_s), rate(long.start_s, stop_s)
    return Turn(idle_s, short_s, long_s, before, during, max(gaps))


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: one value a system, and what is required of the first."""

    what: str
    values: Sequence[float]
    required: str
    is_met: bool | None

    def cells(self) -> Sequence[str]:
        """A row of the table."""
        verdict = "" if self.is_met is None else "ok" if self.is_met else "MISSED"
        return (self.what, *(f"{value:.3f}" for value in self.values), self.required, verdict)


def judge(turns: Sequence[Sequence[Turn]]) -> list[Row]:
    """Compare systems by their medians, ours first."""

    def medians(name: str) -> list[float]:
        return [statistics.median(getattr(turn, name) for turn in each) for each in turns]

    idle, brief, kept, gap = (medians(name) for name in ("idle_s", "short_s", "kept", "gap_s"))
    most = min(idle[0] + 2 * CHUNK_S, SHORT_MAX_S)
    return [
        Row("short request alone, s", idle, "", None),
        Row("short request meanwhile, s", brief, f"<= {most:.3f}", brief[0] <= most),
        Row("long prompt, s", medians("long_s"), "", None),
        Row("streams before, tok/s", medians("before"), "", None),
        Row("streams meanwhile, tok/s", medians("during"), "", None),
        Row("share that they keep", kept, f">= {RATE_MIN}", kept[0] >= RATE_MIN),
        Row("longest gap, s", gap, f"<= {GAP_MAX_S}", gap[0] <= GAP_MAX_S),
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="medians are over this many")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    return parser.parse_args(arguments)


def show(
    turns: Sequence[Sequence[Turn]], names: Sequence[str], others: float, as_json: bool
) -> int:
    """Print what was seen, and return the exit code."""
    rows = judge(turns)
    if as_json:
        print_json({"systems": names, "others": others, "rows": rows, "turns": turns})
    else:
        print_table(("what", *names, "required", ""), [row.cells() for row in rows])
        word = "busy" if others > BUSY_SHARE else "quiet"
        print(f"\nthe machine was {word}: others had {others:.0%} of it")
    return int(any(row.is_met is False for row in rows))


def main() -> int:
    """Measure and print; return the exit code."""
    arguments = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="bramley-") as made:
        folder = Path(made)
        write = [sys.executable, "-P", "-m", "bramley.bench.models", made]
        subprocess.run(write, check=True)  # noqa: S603  needs MLX, which this process does not
        model = folder / "smollm2"
        with our_cluster(model, folder) as ours, peer_server(model) as theirs:
            systems: list[System] = [ours, theirs]
            turns: list[list[Turn]] = [[], []]
            machine = Machine(measured=ours.pids)
            for turn in range(arguments.turns):
                for place in (turn % 2, 1 - turn % 2):
                    time.sleep(REST_S)
                    turns[place].append(measure(systems[place]))
                    print(systems[place].name, turns[place][-1], file=sys.stderr)
            others = machine.others_share()
        names = [system.name for system in systems]
    return show(turns, names, others, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
