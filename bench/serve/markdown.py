"""The report in Markdown: where its figures come from, then figures, then what failed."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bramley.bench.serve import wording
from bramley.bench.serve.goals import Goal
from bramley.bench.serve.summary import WORDS, ArmFacts, Line, RunFacts, Summary

_SPECIAL = str.maketrans(
    {**{mark: f"\\{mark}" for mark in "\\`*_[]#|"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"}
)

_HOW = """\
What `bramley bench serve` measured: whole servers, each asked the same requests over its own
protocol, in turns (`A B B A`), on one machine. A ratio stands only where both sides did the same
work: the same requests and counts, the same cached tokens (a chat template's head, with which all
prompts begin, counts as none), the same greedy answers. Everywhere else both figures stand alone,
with the reason. A ratio is the geometric mean over seeds of the median
ratio of a seed's pairs; its interval is of a block bootstrap over the seeds (20,000 resamples of
the mean log ratio, 95 %), and fewer than five seeds have none. To add a run:

```sh
bramley bench serve --arms bramley,mlx_lm.server --seeds 5 --out run.json
bramley bench report run-*.json --summary docs/performance/NAME.json
make docs
```

`bramley bench report run-*.json --html report.html` draws the same, with the time of every token.
"""


def report(summary: Summary) -> str:
    """Write a summary as a page."""
    return "\n".join([f"# Serving benchmark: {escaped(_model(summary))}\n", *_body(summary), ""])


def performance(summaries: Mapping[str, Summary], mark: str) -> str:
    """Write the page of all summaries that are kept beside the code.

    Args:
        summaries: by their names.
        mark: that says how the page is made.

    Returns:
        The page.
    """
    parts = ["# Performance\n", mark, _HOW]
    if not summaries:
        parts.append("No run is kept here yet.")
    for name, summary in summaries.items():
        parts.append(f"## {escaped(name)}: {escaped(_model(summary))}\n")
        parts += [f"#{line}" if line.startswith("## ") else line for line in _body(summary)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _body(summary: Summary) -> Iterator[str]:
    """Say all of a summary.

    Yields:
        Its lines.
    """
    yield from flaws(summary)
    yield from goals(summary.goals)
    yield "## Figures\n"
    yield from matrix(summary)
    yield from parity(summary)
    yield from failures(summary.arms)
    yield from provenance(summary)


def _model(summary: Summary) -> str:
    return ", ".join(dict.fromkeys(run.model for run in summary.runs))


def escaped(text: str) -> str:
    """Make a text that Markdown shows as it is, on one line."""
    return " ".join(text.split()).translate(_SPECIAL)


def code(text: str) -> str:
    """Make a text that stands for itself in a cell of a table, whatever is in it."""
    line = " ".join(text.split()).replace("|", "\\|")
    fence = _fence(line, 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _fence(text: str, least: int) -> str:
    """Make more backticks than the text has together anywhere."""
    fence = "`" * least
    while fence in text:
        fence += "`"
    return fence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Make a table of cells that are Markdown already.

    Yields:
        Its lines, and an empty one.
    """
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def flaws(summary: Summary) -> Iterator[str]:
    """Say what speaks against the figures, before any of them.

    Yields:
        Its lines.
    """
    found = {flaw: None for run in summary.runs for flaw in run.flaws}
    if found:
        yield "**Read with care:**\n"
        for flaw in found:
            seeds = [str(run.seed) for run in summary.runs if flaw in run.flaws]
            yield f"- {escaped(flaw)} (seed {', '.join(seeds)})"
        yield ""


def provenance(summary: Summary) -> Iterator[str]:
    """Say where the figures come from.

    Yields:
        Its lines.
    """
    yield "## Where this comes from\n"
    if summary.commands:
        commands = [" ".join(command.split()) for command in summary.commands]
        fence = _fence("".join(commands), 3)
        yield "\n".join([f"{fence}sh", *commands, fence, ""])
    header = ("run", "seed", "started", "mode", "commit", "sources", "model", "order")
    yield from table(header, (_run_row(run) for run in summary.runs))
    for name, told in (
        ("Machine", [wording.facts(run.machine) for run in summary.runs]),
        ("Workload", [wording.facts(run.workload) for run in summary.runs]),
        ("Preflight", ["; ".join(run.checks) or "none" for run in summary.runs]),
    ):
        for each in dict.fromkeys(told):
            yield f"- {name}: {escaped(each)}"
    yield ""
    header = ("arm", "kind", "command", "BLAS", "versions", "settings", "stability", "others")
    yield from table(header, (_arm_row(arm) for arm in summary.arms))
    yield "*Stability* is the largest decode sample over the smallest; *others* is the share of"
    yield "the machine that other processes had, at most.\n"


def _run_row(run: RunFacts) -> Sequence[str]:
    model = f"{escaped(run.model)} ({escaped(run.config_sha256[:12]) or 'unknown'})"
    return (
        *(code(run.id), str(run.seed), escaped(run.started), run.mode),
        *(escaped(run.commit[:12]) or wording.NONE, escaped(run.source_sha256[:12]), model),
        escaped(", ".join(run.order)),
    )


def _arm_row(arm: ArmFacts) -> Sequence[str]:
    return (
        *(escaped(arm.name), escaped(arm.kind)),
        code(shlex.join(arm.command)) if arm.command else "ran already",
        *(escaped(arm.blas) or "unknown", escaped(wording.facts(arm.versions))),
        escaped(wording.facts(arm.settings)) or "defaults",
        wording.NONE if arm.stability is None else f"{arm.stability:.3f}",
        wording.NONE if arm.others is None else f"{arm.others:.0%}",
    )


def matrix(summary: Summary) -> Iterator[str]:
    """Make the table of all metrics and arms, and the reasons below it.

    Yields:
        Its lines.
    """
    base = escaped(summary.baseline)
    names = [escaped(arm.name) for arm in summary.arms]
    yield f"Medians; below each the smallest and largest sample; then the ratio to **{base}** with"
    yield "its 95 % interval. A ratio is there only if both arms did the same work; else the number"
    yield "leads to the reason below. ↑ higher is better, ↓ lower is better.\n"
    if terms := wording.terms(summary):
        yield f"{terms}\n"
    notes: list[str] = []
    rows = [(_title(line), *_cells(line, notes)) for line in summary.lines]
    yield from table(("metric", *names), rows)
    yield from (f"{number}. {escaped(note)}" for number, note in enumerate(notes, 1))
    if notes:
        yield ""
    yield "| what is measured | a ratio needs |\n|---|---|"
    for line in summary.lines:
        yield f"| {code(line.metric)}: {escaped(line.meaning)} | {line.rule} |"
    yield ""


def _title(line: Line) -> str:
    arrow = {"higher": " ↑", "lower": " ↓", "neither": ""}[line.better]
    return f"{code(line.metric)}{arrow}"


def _cells(line: Line, notes: list[str]) -> Iterator[str]:
    """Say a metric of each arm; reasons are gathered in ``notes``, each once.

    Yields:
        One cell an arm.
    """
    for cell in line.cells:
        parts = [f"**{escaped(wording.median(cell.spread, line.unit))}**"] if cell.spread else []
        parts.append(escaped(wording.spread(cell.spread, line.unit)))
        if said := wording.ratio(cell.against):
            parts.append(escaped(f"{said} {wording.direction(cell.against, line.better)}"))
        if cell.status != "ok":
            parts.append(f"*{WORDS[cell.status]}*")
        marks: list[str] = []
        for note in cell.notes:
            if note not in notes:
                notes.append(note)
            marks.append(str(notes.index(note) + 1))
        parts.append(f"({', '.join(marks)})" if marks else "")
        yield "<br>".join(filter(None, parts))


def goals(found: Sequence[Goal]) -> Iterator[str]:
    """Say what is required, and whether it is reached.

    Yields:
        Its lines.
    """
    if not found:
        return
    yield "## Required and reached\n"
    header = ("required of", "arm", "required", "reached", "verdict", "")
    rows: list[Sequence[str]] = []
    for goal in found:
        required, reached = wording.goal_values(goal)
        verdict = f"**missed** by {goal.gap}" if goal.gap else goal.verdict
        words = (escaped(goal.what), escaped(goal.arm), required, escaped(reached))
        rows.append((*words, verdict, escaped(goal.note)))
    yield from table(header, rows)


def parity(summary: Summary) -> Iterator[str]:
    """Say who answers as the baseline does.

    Yields:
        Its lines.
    """
    if not summary.parity:
        return
    yield "## Answers\n"
    for one in summary.parity:
        told = f"- {escaped(one.arm)}: {one.same} of {one.asked} probes answered in the words of"
        yield f"{told} {escaped(summary.baseline)}"
        yield from (f"  - {escaped(words)}" for words in one.differ)
    yield ""


def failures(arms: Sequence[ArmFacts]) -> Iterator[str]:
    """Say what failed, and what could not be done.

    Yields:
        Its lines.
    """
    yield "## Failures\n"
    rows = [
        (
            *(escaped(arm.name), escaped(one.phase), str(one.attempt), str(one.seed)),
            *("yes" if one.is_final else "no, tried again", escaped(one.error)),
        )
        for arm in arms
        for one in arm.failures
    ]
    if rows:
        yield from table(("arm", "phase", "attempt", "seed", "given up", "error"), rows)
    else:
        yield "No phase failed.\n"
    for arm in arms:
        name = escaped(arm.name)
        if arm.errors:
            yield f"- {name}: requests that ended in an error: {escaped(wording.errors(arm))}."
        if arm.retries:
            yield f"- {name}: {arm.retries} times a request was refused and asked again."
        if arm.uncounted:
            yield f"- {name}: the server did not count the tokens of {arm.uncounted} requests;"
            yield "  each event counts as one."
        for what, why in sorted(arm.not_applicable.items()):
            yield f"- {escaped(arm.name)}: {escaped(what)} is not applicable: {escaped(why)}"
    yield ""
