"""Keeps runs in a local SQLite file: ``python -m bramley.bench.serve.history [RUN.json ...]``.

Runs that are named are added; one that is there already is replaced. Then it lists the runs of
this file, or with ``--metric`` how that metric went, machine by machine: figures of two machines
say nothing about each other.
"""

import argparse
import hashlib
import sqlite3
import statistics
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bramley.bench.serve import record, wording
from bramley.bench.serve.compare import machine
from bramley.bench.serve.record import Run
from bramley.client.commands.screen import print_json, print_table, say
from bramley.common.errors import InvalidRequest

DEFAULT = Path("~/.bramley/bench.sqlite")
_VERSION = 1
_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, started TEXT NOT NULL, seed INTEGER NOT NULL, mode TEXT NOT NULL,
    machine_key TEXT NOT NULL, machine TEXT NOT NULL, model TEXT NOT NULL,
    config_sha256 TEXT NOT NULL, workload_key TEXT NOT NULL, source_sha256 TEXT NOT NULL,
    revision TEXT NOT NULL, is_complete INTEGER NOT NULL, arms TEXT NOT NULL
) STRICT;
CREATE TABLE figures (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, arm TEXT NOT NULL,
    metric TEXT NOT NULL, unit TEXT NOT NULL, median REAL NOT NULL, low REAL NOT NULL,
    high REAL NOT NULL, samples INTEGER NOT NULL, PRIMARY KEY (run, arm, metric)
) STRICT, WITHOUT ROWID;
"""


class Listed(NamedTuple):
    """A run, as it is kept."""

    id: str
    started: str
    seed: int
    mode: str
    machine_key: str
    model: str
    workload_key: str
    revision: str
    is_complete: bool
    arms: str


class Figure(NamedTuple):
    """One metric of one arm in one run."""

    machine_key: str
    model: str
    workload_key: str
    arm: str
    started: str
    revision: str
    mode: str
    unit: str
    median: float
    low: float
    high: float
    samples: int
    run: str


class History:
    """The file, open.

    Args:
        connection: to it; whoever made it closes it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, run: Run) -> None:
        """Keep a run's figures; of its id there is one, however often it is added."""
        with self._connection:
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run.id,))
            self._connection.execute(
                f"INSERT INTO runs VALUES ({', '.join('?' * 13)})",  # noqa: S608  question marks
                (
                    *(run.id, run.started, run.seed, run.mode, machine_key(run)),
                    *(msgspec.json.encode(run.machine).decode(), run.model.name),
                    *(run.model.config_sha256, _key(run.workload), run.source.start),
                    *(_revision(run), int(run.is_complete)),
                    ", ".join(arm.name for arm in run.arms),
                ),
            )
            self._connection.executemany(
                "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _figures(run)
            )

    def runs(self, model: str | None = None) -> list[Listed]:
        """List runs, the oldest first; of one model, or of all."""
        rows = self._connection.execute(
            "SELECT id, started, seed, mode, machine_key, model, workload_key, revision,"
            " is_complete, arms FROM runs WHERE ?1 IS NULL OR model = ?1 ORDER BY started, id",
            (model,),
        )
        return [Listed._make(row)._replace(is_complete=bool(row[8])) for row in rows]

    def course(self, metric: str, model: str | None = None, arm: str | None = None) -> list[Figure]:
        """Tell how a metric went, by machine, model, workload and arm, the oldest first."""
        rows = self._connection.execute(
            "SELECT machine_key, model, workload_key, arm, started, revision, mode, unit, median,"
            " low, high, samples, run FROM figures JOIN runs ON run = id"
            " WHERE metric = ?1 AND (?2 IS NULL OR model = ?2) AND (?3 IS NULL OR arm = ?3)"
            " ORDER BY machine_key, model, workload_key, arm, started, id",
            (metric, model, arm),
        )
        return [Figure._make(row) for row in rows]

    def metrics(self) -> list[str]:
        """Name all metrics of which there is a figure."""
        return [name for (name,) in self._connection.execute("SELECT DISTINCT metric FROM figures")]


@contextmanager
def opened(path: Path) -> Generator[History]:
    """Open a history, or begin one.

    Yields:
        It.

    Raises:
        InvalidRequest: the file is none, or of another version.
    """
    path = path.expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            with connection:  # two that begin it at once: the second one finds it begun
                connection.execute("BEGIN IMMEDIATE")
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
        except sqlite3.DatabaseError as error:
            raise InvalidRequest(str(path), f"is no history of runs: {error}") from error
        if version not in {0, _VERSION}:
            raise InvalidRequest(str(path), f"has version {version}, and not {_VERSION}")
        yield History(connection)


def machine_key(run: Run) -> str:
    """Name a machine by what makes its speed; eight digits."""
    return _key(machine(run))


def _key(facts: object) -> str:
    encoded = msgspec.json.encode(facts, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:8]


def _revision(run: Run) -> str:
    return (run.source.commit[:12] or run.source.start[:12]) + ("" if run.source.is_clean else "+")


def _figures(run: Run) -> Iterator[tuple[str, str, str, str, float, float, float, int]]:
    for arm in run.arms:
        for metric, unit in {sample.metric: sample.unit for sample in arm.samples}.items():
            values = [sample.value for sample in arm.samples if sample.metric == metric]
            middle = statistics.median(values)
            yield run.id, arm.name, metric, unit, middle, min(values), max(values), len(values)


def show_runs(runs: Iterable[Listed], *, as_json: bool) -> None:
    """Print a line a run."""
    if as_json:
        for run in runs:
            print_json(run._asdict())
        return
    header = ("started", "id", "seed", "model", "machine", "workload", "revision", "mode", "arms")
    rows = [
        (
            *(run.started, run.id, str(run.seed), run.model, run.machine_key, run.workload_key),
            *(run.revision, run.mode if run.is_complete else f"{run.mode}, cut short", run.arms),
        )
        for run in runs
    ]
    print_table(header, rows)


def show_course(figures: Iterable[Figure], *, as_json: bool) -> None:
    """Print a line a figure, and the change against the one before of the same kind."""
    if as_json:
        for figure in figures:
            print_json(figure._asdict())
        return
    header = (
        *("machine", "model", "workload", "arm", "started", "revision"),
        *("median", "from..to", "samples", "change", "mode"),
    )
    rows: list[Sequence[str]] = []
    before: Figure | None = None
    for one in figures:
        change = ""
        if before is not None and before[:4] == one[:4] and before.median:
            change = f"{one.median / before.median - 1:+.1%}"
        span = f"{wording.value(one.low, one.unit)}..{wording.value(one.high, one.unit)}"
        values = (wording.value(one.median, one.unit), span, str(one.samples), change, one.mode)
        rows.append((*one[:6], *values))
        before = one
    print_table(header, rows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bramley bench history", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json", help="to be added first")
    parser.add_argument("--history", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--model", help="only of this one")
    parser.add_argument("--arm", help="only of this one; with --metric")
    parser.add_argument("--metric", help="show how it went, instead of the runs")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args(arguments)


def work(arguments: argparse.Namespace) -> None:
    """Add what is to be added, and print what was asked for."""
    runs = [record.load(path) for path in arguments.runs]
    with opened(arguments.history) as history:
        for run in runs:
            history.add(run)
        if arguments.metric is None:
            show_runs(history.runs(arguments.model), as_json=arguments.json)
            return
        if arguments.metric not in (names := history.metrics()):
            known = ", ".join(sorted(names)) or "there is none yet"
            raise InvalidRequest("--metric", f"{arguments.metric!r} is none of: {known}")
        figures = history.course(arguments.metric, arguments.model, arguments.arm)
        show_course(figures, as_json=arguments.json)


def main(given: Sequence[str]) -> int:
    """Do it; return the exit code."""
    try:
        work(parse(given))
    except (InvalidRequest, OSError, sqlite3.Error) as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
