"""What a report says, without any text of an answer: small enough to be kept beside the code.

Everything that a page shows of figures is decided here; pages only say it.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal

import msgspec

from bramley.bench.figures import BUSY_SHARE
from bramley.bench.serve.columns import Against, Column, Parity, Spread, against, columns, parity
from bramley.bench.serve.compare import Rule, Why, rule
from bramley.bench.serve.goals import PEER, Goal, goals, in_unit
from bramley.bench.serve.metrics import METRICS, Better, Metric
from bramley.bench.serve.record import LEFT, Run
from bramley.common.errors import InvalidRequest

SUMMARY_SCHEMA = 1
STABLE = 1.15  # largest decode sample over the smallest, of an arm that can be believed
Status = Literal["ok", "slow", "suppressed", "failed", "not applicable", "not measured"]
WORDS: dict[Status, str] = {
    "ok": "ok",
    "slow": "slower than required",
    "suppressed": "ratio suppressed",
    "failed": "failed",
    "not applicable": "not applicable",
    "not measured": "not measured",
}
# Folders of the machine say nothing to others: of a path only its last part is kept. Within
# quotation marks a path may have spaces.
_FOLDERS = re.compile(
    r"(?<=')~?/[^'\n]*/(?=[^'/\n]+')"
    r'|(?<=")~?/[^"\n]*/(?=[^"/\n]+")'
    r"|(?<![\w:/.~-])~?/(?:[^/\s\"'=,]+/)+"
)


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric of one column.

    Attributes:
        arm: the column's name.
        spread: of all samples, if there are any.
        against: the baseline; of the baseline itself nothing.
        notes: reasons for the status, and goals that are missed.
    """

    arm: str
    status: Status
    spread: Spread | None = None
    against: Against | None = None
    notes: list[str] = []


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric of all columns."""

    metric: str
    phase: str
    unit: str
    better: Better
    meaning: str
    rule: Rule
    cells: list[Cell]


class Failed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt at a phase that failed."""

    phase: str
    attempt: int
    seed: int
    is_final: bool
    error: str


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one column.

    Attributes:
        stability: the worst of all runs.
        others: the most of the machine that others had in a turn.
        uncounted: requests that were read to their end, whose tokens the server did not count.
        errors: requests that failed, by phase.
    """

    name: str
    kind: str
    command: list[str]
    versions: dict[str, str]
    blas: str
    settings: dict[str, Any]
    runs: list[str]
    requests: int
    errors: dict[str, int]
    uncounted: int
    retries: int
    stability: float | None
    others: float | None
    not_applicable: dict[str, str]
    failures: list[Failed]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one run: on what, of what, and how sound it is.

    Attributes:
        shared_tokens: that all prompts begin with; None where that is not known.
        flaws: whatever speaks against its figures.
    """

    id: str
    seed: int
    started: str
    mode: str
    machine: dict[str, Any]
    commit: str
    source_sha256: str
    model: str
    config_sha256: str
    workload: dict[str, Any]
    order: list[str]
    shared_tokens: int | None = None
    checks: list[str]
    flaws: list[str]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report says."""

    schema: int = SUMMARY_SCHEMA
    commands: list[str]
    baseline: str
    slack: int
    runs: list[RunFacts]
    arms: list[ArmFacts]
    parity: list[Parity]
    lines: list[Line]
    goals: list[Goal]


def summarise(
    runs: Sequence[Run],
    baseline: str | None = None,
    command: Sequence[str] = (),
    slack: int = 0,
) -> Summary:
    """Sum up runs.

    Args:
        runs: one at least; one that is there twice counts once.
        baseline: name of the column that ratios are of; without it `mlx_lm.server`, or the first.
        command: that makes the summary; the runs have theirs.
        slack: tokens by which the cached ones of two requests may differ.

    Returns:
        The summary.

    Raises:
        InvalidRequest: there is no column of that name.
    """
    found = columns(runs)
    if not found:
        raise InvalidRequest("RUN.json", "holds no arm that was measured")
    base = _baseline(found, baseline)
    reached = goals(found, slack)
    return Summary(
        commands=list(
            dict.fromkeys(_shell(words) for words in (*(run.command for run in runs), command))
        ),
        baseline=base.name,
        slack=slack,
        runs=[_run_facts(run) for run in {run.id: run for run in runs}.values()],
        arms=[_arm_facts(column) for column in found],
        parity=[
            told for column in found if column is not base and (told := parity(column, base)).asked
        ],
        lines=[_line(metric, found, _Base(base, slack), reached) for metric in _metrics(found)],
        goals=reached,
    )


class _Base:
    """What columns are compared with, and how strictly."""

    def __init__(self, column: Column, slack: int) -> None:
        self._column, self._slack = column, slack

    def compared(self, column: Column, metric: str) -> Against | None:
        """Compare a column; the baseline itself with nothing."""
        if column is self._column:
            return None
        return against(column, self._column, metric, self._slack)


def _baseline(found: Sequence[Column], name: str | None) -> Column:
    if name is None:
        peers = (column for column in found if column.arm.kind == PEER)
        return next(peers, found[0])
    for column in found:
        if column.name == name:
            return column
    names = ", ".join(column.name for column in found)
    raise InvalidRequest("--baseline", f"{name!r} is none of {names}")


def _metrics(found: Iterable[Column]) -> list[str]:
    """Sort metrics as they are described; those of a number of streams by it."""
    names = dict.fromkeys(
        sample.metric for column in found for side in column.sides for sample in side.arm.samples
    )
    known = list(METRICS)

    def place(name: str) -> tuple[int, int, str]:
        head, at, rest = name.partition("@")
        where = known.index(head + at) if head + at in METRICS else len(known)
        return where, int(rest) if rest.isdigit() else 0, name

    return sorted(names, key=place)


def _line(metric: str, found: Sequence[Column], base: _Base, reached: Sequence[Goal]) -> Line:
    samples = [one for column in found for side in column.sides for one in side.samples(metric)]
    head, at, rest = metric.partition("@")
    known = METRICS.get(head + at, Metric(samples[0].unit, "neither", ""))
    missed = [goal for goal in reached if goal.verdict == "missed" and goal.metrics[0] == metric]
    phase = _phase(metric, found)
    return Line(
        metric=metric,
        phase=phase,
        unit=samples[0].unit,
        better=known.better,
        meaning=known.meaning + (f" ({rest})" if rest else ""),
        rule=rule(metric),
        cells=[_cell(metric, phase, column, base, missed) for column in found],
    )


def _phase(metric: str, found: Iterable[Column]) -> str:
    """Tell of which phase a metric is: of its requests', or else its first word."""
    for column in found:
        for side in column.sides:
            for sample in side.samples(metric):
                for request in side.requests(sample):
                    return request.phase
    return "load" if metric == "ready" else metric.split("_", maxsplit=1)[0]


def _cell(metric: str, phase: str, column: Column, base: _Base, missed: Sequence[Goal]) -> Cell:
    spread = column.spread(metric)
    told = base.compared(column, metric) if spread else None
    notes = [
        f"{one.what}: {in_unit(one.reached, one.unit)}, and required is {one.required}"
        for one in missed
        if one.arm == column.name and one.reached is not None
    ]
    failures = [
        f"{failure.phase} failed: {without_folders(failure.error)}"
        for side in column.sides
        for failure in side.arm.failures
        if failure.phase in {phase, "start"} and failure.is_final
    ]
    reasons = told.reasons if told else []
    absent = [
        side.arm.not_applicable[name]
        for side in column.sides
        for name in (metric, phase)
        if name in side.arm.not_applicable
    ]
    status: Status = "ok"
    if failures:
        status = "failed"
    elif spread is None:
        status = "not applicable" if absent else "not measured"
    elif notes:
        status = "slow"
    elif told and told.ratio is None and not _is_alone(told):
        status = "suppressed"
    every = [*failures, *notes, *reasons, *(absent if spread is None else ())]
    return Cell(
        arm=column.name,
        status=status,
        spread=spread,
        against=told,
        notes=list(dict.fromkeys(every)),
    )


def _is_alone(told: Against) -> bool:
    """Whether the baseline has nothing to compare with: that is no suppressed ratio."""
    return all(reason.startswith(f"{Why.ABSENT}:") for reason in told.reasons)


def _arm_facts(column: Column) -> ArmFacts:
    arms = [side.arm for side in column.sides]
    requests = [request for arm in arms for request in arm.requests]
    first = column.arm
    return ArmFacts(
        name=column.name,
        kind=first.kind,
        command=[_bare(word) for word in first.command],
        versions=first.versions,
        blas=without_folders(first.blas),
        settings={
            key: without_folders(value) if isinstance(value, str) else value
            for key, value in first.settings.items()
        },
        runs=[side.run.id for side in column.sides],
        requests=len(requests),
        errors=Counter(request.phase for request in requests if request.error is not None),
        uncounted=sum(
            request.counted_by == "events" and request.finish not in {None, LEFT}
            for request in requests
        ),
        retries=sum(request.retries for request in requests),
        stability=max((arm.stability for arm in arms if arm.stability is not None), default=None),
        others=max((share for arm in arms for share in arm.others), default=None),
        not_applicable={phase: why for arm in arms for phase, why in arm.not_applicable.items()},
        failures=[
            Failed(
                phase=failure.phase,
                attempt=failure.attempt,
                seed=side.run.seed,
                is_final=failure.is_final,
                error=without_folders(failure.error),
            )
            for side in column.sides
            for failure in side.arm.failures
        ],
    )


def _run_facts(run: Run) -> RunFacts:
    unmet = [check for check in run.preflight.checks if not check.is_met]
    flaws = [f"{check.name} was {check.value}, wanted {check.limit}" for check in unmet]
    if run.mode == "diagnostic":
        flaws.insert(0, "diagnostic: these figures are no measurement")
    if not run.is_complete:
        flaws.append("the run did not come to its end")
    elif not run.source.is_same:
        flaws.append("the sources changed while it ran")
    if not run.source.is_clean:
        flaws.append("the sources are no commit's")
    for arm in run.arms:
        if (others := max(arm.others, default=0.0)) > BUSY_SHARE:
            flaws.append(f"others had {others:.0%} of the machine in a turn of {arm.name}")
        if (apart := arm.stability or 1.0) > STABLE:
            words = f"the largest decode sample of {arm.name} is {apart:.2f} times the smallest"
            flaws.append(f"{words}, wanted <= {STABLE}")
    return RunFacts(
        id=run.id,
        seed=run.seed,
        started=run.started,
        mode=run.mode,
        machine=run.machine,
        commit=run.source.commit,
        source_sha256=run.source.start,
        model=run.model.name,
        config_sha256=run.model.config_sha256,
        workload=run.workload,
        order=run.order,
        shared_tokens=run.shared_tokens,
        checks=[f"{check.name} {check.value} ({check.limit})" for check in run.preflight.checks],
        flaws=flaws,
    )


def without_folders(text: str) -> str:
    """Leave of each path in a text only its last part."""
    return _FOLDERS.sub("", text)


def _bare(word: str) -> str:
    """Leave of a word that is a path, with whatever spaces in it, only its last part."""
    option, is_given, path = word.partition("=") if word.startswith("--") else ("", "", word)
    is_path = path.startswith(("/", "~/"))
    return f"{option}{is_given}{PurePath(path).name}" if is_path else without_folders(word)


def _shell(words: Iterable[str]) -> str:
    return shlex.join(map(_bare, words))


def save(summary: Summary, path: Path) -> None:
    """Write a summary; the same summary is the same bytes."""
    content = msgspec.json.encode(summary, order="deterministic")
    path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def load(path: Path) -> Summary:
    """Read a summary.

    Returns:
        It.

    Raises:
        InvalidRequest: the file is none, or one of another schema.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Summary)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(path), f"is no summary: {error}") from error
    if found.schema != SUMMARY_SCHEMA:
        raise InvalidRequest(str(path), f"has schema {found.schema}, and not {SUMMARY_SCHEMA}")
    return found
