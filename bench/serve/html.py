"""The report as one HTML page, whole in itself: no script, nothing that is loaded.

The baseline is chosen by radio buttons, and rules of style show what is said against it; a reader
without such rules sees the baseline of the report. No colour means anything alone: each status has
a sign and a word, each curve its dashes.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bramley.bench.serve import plots, wording
from bramley.bench.serve.columns import PARITY, Column, columns
from bramley.bench.serve.compare import Side
from bramley.bench.serve.plots import ARMS, Curve
from bramley.bench.serve.record import Request, Run
from bramley.bench.serve.summary import (
    WORDS,
    ArmFacts,
    Cell,
    Line,
    Status,
    Summary,
    summarise,
    without_folders,
)
from bramley.bench.serve.tags import Markup, join, table, tag

SIGNS: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "good"),
    "slow": ("▼", "bad"),
    "suppressed": ("⊘", "care"),
    "failed": ("✕", "bad"),
    "not applicable": ("∅", "soft"),
    "not measured": ("·", "soft"),
}
_VERDICTS: dict[str, Status] = {"met": "ok", "missed": "slow", "not shown": "not measured"}
_TEXT_MAX = 2000  # characters of an answer
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(runs: Sequence[Run], told: Summary) -> str:
    """Write the page.

    Args:
        runs: for times of tokens and texts of answers.
        told: the summary of the same runs.

    Returns:
        HTML.
    """
    found = columns(runs)
    names = dict.fromkeys((told.baseline, *(column.name for column in found)))
    by_base = [told, *(summarise(runs, name, slack=told.slack) for name in list(names)[1:])]
    title = f"Serving benchmark: {', '.join(dict.fromkeys(run.model for run in told.runs))}"
    style = Path(__file__).with_name("report.css").read_text() + _choices(len(by_base))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        # Of our own making alone: escaped it would be no style.
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("h1", title),
        _lead(told),
        _flaws(told),
        _nav(),
        _goals(told),
        _figures(by_base, found),
        _spreads(found),
        _strips(found),
        _answers(found, told),
        _failures(found, told),
        _provenance(told),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _choices(count: int) -> str:
    """Make the rules that show what is said against the chosen baseline."""
    rules = (
        f"body:has(#base{number}:checked) .vs {{ display: none; }}\n"
        f"body:has(#base{number}:checked) .vs{number} {{ display: block; }}\n"
        for number in range(count)
    )
    return "".join(rules)


def _section(name: str, title: str, *inside: object) -> Markup:
    return tag("section", tag("h2", title, id=name), *inside)


def _lead(told: Summary) -> Markup:
    first = told.runs[0]
    seeds = f"{len(told.runs)} runs" if len(told.runs) != 1 else "One run"
    modes = " and ".join(dict.fromkeys(run.mode for run in told.runs))
    when = f"{first.started} to {told.runs[-1].started}" if len(told.runs) > 1 else first.started
    revision = first.commit[:12] or f"sources {first.source_sha256[:12]}"
    cpu = first.machine.get("cpu", "a machine unknown")
    words = f"{seeds} ({modes}), {when}, at {revision}, on {cpu}."
    return tag("p", words, class_="soft")


def _flaws(told: Summary) -> Markup | None:
    found = dict.fromkeys(flaw for run in told.runs for flaw in run.flaws)
    if not found:
        return None
    items = (
        tag(
            "li",
            f"{flaw} (seed {', '.join(str(run.seed) for run in told.runs if flaw in run.flaws)})",
        )
        for flaw in found
    )
    return tag("div", tag("strong", "⚠ Read with care"), tag("ul", *items), class_="flaws")


def _nav() -> Markup:
    places = ("goals", "figures", "times", "tokens", "answers", "failures", "provenance")
    return tag("nav", *(tag("a", place, href=f"#{place}") for place in places))


def _status(status: Status, words: str | None = None) -> Markup:
    sign, look = SIGNS[status]
    return tag(
        "span", tag("i", sign, aria_hidden="true"), words or WORDS[status], class_=f"status {look}"
    )


def _goals(told: Summary) -> Markup:
    rows: list[list[object]] = []
    for goal in told.goals:
        required, reached = wording.goal_values(goal)
        verdict = f"missed by {goal.gap}" if goal.gap else goal.verdict
        status = _status(_VERDICTS[goal.verdict], verdict)
        note = tag("small", goal.note) if goal.note else None
        rows.append([goal.what, goal.arm, required, reached, join(status, note)])
    header: list[object] = ["required of", "arm", "required", "reached", "verdict"]
    words = "Nothing is required of the arms that were measured."
    return _section(
        "goals", "Required and reached", table(header, rows) if rows else tag("p", words)
    )


def _figures(by_base: Sequence[Summary], found: Sequence[Column]) -> Markup:
    buttons = (
        tag(
            "label",
            tag("input", type="radio", name="base", id=f"base{number}", checked=number == 0),
            f" {told.baseline}",
        )
        for number, told in enumerate(by_base)
    )
    chooser = tag("fieldset", tag("legend", "Ratios are to"), *buttons)
    words = (
        "Medians of all samples, then the smallest and the largest; each line of the small drawing "
        "is a sample, on one scale a row. A ratio is there only if both arms did the same work: "
        "machine, model and workload are the same, and what is said below each metric. Its "
        "interval, in brackets, holds 95\N{NO-BREAK SPACE}%. ↑ higher is better, ↓ lower is better."
    )
    names = [column.name for column in found]
    head = tag("tr", *(tag("th", name, scope="col") for name in ["metric", *names]))
    places = list(range(len(by_base[0].lines)))
    groups = groupby(places, key=lambda place: by_base[0].lines[place].phase)
    bodies: list[Markup] = []
    for phase, inside in groups:
        title = tag("tr", tag("th", phase, colspan=len(names) + 1, scope="rowgroup"))
        rows = [_row([told.lines[place] for told in by_base], by_base, found) for place in inside]
        bodies.append(tag("tbody", title, *rows, class_="group"))
    matrix = tag("table", tag("thead", head), *bodies, class_="matrix")
    scrolled = tag("div", matrix, class_="wide", tabindex="0", role="region", aria_label="figures")
    return _section(
        "figures",
        "Figures",
        tag("p", f"{words} {wording.terms(by_base[0])}", class_="soft"),
        chooser,
        scrolled,
    )


def _row(lines: Sequence[Line], by_base: Sequence[Summary], found: Sequence[Column]) -> Markup:
    line = lines[0]
    arrow = {"higher": " ↑", "lower": " ↓", "neither": ""}[line.better]
    meaning = tag("small", f"{line.meaning}. A ratio needs {line.rule}.")
    title = tag("th", tag("code", line.metric), arrow, meaning, scope="row", class_="metric")
    samples = [column.values(line.metric) for column in found]
    every = [value for values in samples for value in values]
    cells: list[Markup] = []
    for number, column in enumerate(found):
        own = [one.cells[number] for one in lines]
        seen = own[0].spread
        drawing = plots.dots(samples[number], min(every), max(every), number % ARMS)
        parts: list[object] = []
        if seen is not None:
            parts += [tag("span", wording.median(seen, line.unit), class_="median")]
            parts += [drawing, tag("small", wording.spread(seen, line.unit))]
        for place, (cell, told) in enumerate(zip(own, by_base, strict=True)):
            first = " first" if place == 0 else ""
            inside = _against(cell, line, is_base=told.baseline == column.name)
            parts.append(tag("div", *inside, class_=f"vs vs{place}{first}"))
        cells.append(tag("td", *parts, data_label=column.name))
    return tag("tr", title, *cells)


def _against(cell: Cell, line: Line, *, is_base: bool) -> Iterator[Markup]:
    """Say how a cell stands against one baseline.

    Yields:
        Ratio, status and reasons.
    """
    if is_base and cell.spread is not None:
        yield tag("span", "the baseline", class_="ratio soft")
    if said := wording.ratio(cell.against):
        words = wording.direction(cell.against, line.better)
        yield tag("span", tag("b", said), f" {words}", class_="ratio")
        yield tag("small", wording.basis(cell.against))
    yield _status(cell.status)
    if cell.notes:
        items = tag("ul", *(tag("li", note) for note in cell.notes), class_="reasons")
        yield tag("details", tag("summary", "why"), items)


def _of_phase(column: Column, phase: str) -> list[Request]:
    return [one for side in column.sides for one in side.arm.requests if one.phase == phase]


def _spreads(found: Sequence[Column]) -> Markup:
    def times(metric: str) -> list[Curve]:
        return [
            Curve(column.name, number % ARMS, column.values(metric))
            for number, column in enumerate(found)
        ]

    def gaps(phase: str) -> list[Curve]:
        return [
            Curve(
                column.name,
                number % ARMS,
                [gap for one in _of_phase(column, phase) for gap in plots.gaps_s(one)],
            )
            for number, column in enumerate(found)
        ]

    drawn = [
        plots.spread("Time to the first text, prompts anew", times("ttft_cold")),
        plots.spread("Time to the first text, prompts once more", times("ttft_repeat")),
        plots.spread("Time to the first text, a long prompt", times("context_ttft")),
        plots.spread("Between texts of one stream", gaps("decode")),
        plots.spread("Between texts of streams together", gaps("aggregate")),
        plots.spread("Between texts, a long prompt beside them", gaps("mixed")),
    ]
    words = "Which share of an arm's times is at or below a time; further left is faster."
    shown = tag("div", *drawn, class_="plots") if any(drawn) else tag("p", "No times.")
    return _section("times", "How times are spread", tag("p", words, class_="soft"), shown)


def _strips(found: Sequence[Column]) -> Markup:
    words = (
        "A strip is a stream: a dashed line until its first token, then a line for each token, "
        "taller where several came at once. All arms of a drawing have the same scale. The first "
        "run of each arm is drawn."
    )
    looks = [(number % ARMS, column.name, column.sides[0]) for number, column in enumerate(found)]
    widest = max(
        (s.metric for _, _, side in looks for s in side.arm.samples if _streams(s.metric)),
        key=_streams,
        default="",
    )
    drawings = [
        _drawing("Decode: one stream after the other", looks, "decode"),
        _drawing(f"Together: {_streams(widest)} streams", looks, "aggregate", widest),
        _drawing("Mixed: running streams, a long prompt, a short request", looks, "mixed"),
    ]
    return _section("tokens", "When each token came", tag("p", words, class_="soft"), *drawings)


def _streams(metric: str) -> int:
    head, _, count = metric.partition("@")
    return int(count) if head == "aggregate_rate" and count.isdigit() else 0


def _drawing(
    title: str, looks: Sequence[tuple[int, str, Side]], phase: str, metric: str = ""
) -> Markup | None:
    """Draw one phase of all arms, of their first turn; or what one sample of it rests on."""
    chosen: list[tuple[int, str, list[Request]]] = []
    for look, name, side in looks:
        if metric:
            requests = [one for s in side.samples(metric)[:1] for one in side.requests(s)]
        else:
            requests = [one for one in side.arm.requests if one.phase == phase and one.turn == 0]
        if requests:
            requests.sort(key=lambda one: (one.sent_s, one.index))
            chosen.append((look, name, requests))
    if not chosen:
        return None
    together = phase != "decode"
    starts = [min(one.sent_s for one in requests) for _, _, requests in chosen]
    span_s = max(
        one.ended_s - (start_s if together else one.sent_s)
        for start_s, (_, _, requests) in zip(starts, chosen, strict=True)
        for one in requests
    )
    parts: list[Markup] = []
    for start_s, (look, name, requests) in zip(starts, chosen, strict=True):
        parts.append(tag("h3", plots.key(look), " ", name))
        from_s = start_s if together else None
        parts.append(plots.strips(requests, span_s or 1.0, look, from_s))
    return tag("figure", tag("figcaption", title), *parts, plots.axis(span_s))


def _answers(found: Sequence[Column], told: Summary) -> Markup:
    """Show who answers as the baseline does, and the answers themselves."""
    lines = [
        tag(
            "li",
            f"{one.arm}: {one.same} of {one.asked} probes answered in the words of {told.baseline}",
            tag("ul", *(tag("li", words) for words in one.differ)) if one.differ else None,
        )
        for one in told.parity
    ]
    texts: dict[str, list[Markup]] = {}
    for column in found:
        for one in column.sides[0].arm.requests:
            if one.phase == PARITY and one.turn == 0 and one.attempt == 1:
                said = one.text[:_TEXT_MAX] + ("…" if len(one.text) > _TEXT_MAX else "")
                box = tag("div", tag("b", column.name), tag("pre", said or "(no text)"))
                texts.setdefault(f"Probe {one.index}", []).append(box)
    shown = [
        tag("details", tag("summary", name), tag("div", *boxes, class_="answers"))
        for name, boxes in texts.items()
    ]
    nothing = tag("p", "No probe was asked of two arms.") if not lines else tag("ul", *lines)
    return _section("answers", "Answers", nothing, *shown)


def _failures(found: Sequence[Column], told: Summary) -> Markup:
    rows: list[list[object]] = [
        [
            *(arm.name, failure.phase, failure.attempt, failure.seed),
            _status("failed", "given up") if failure.is_final else "tried again",
            failure.error,
        ]
        for arm in told.arms
        for failure in arm.failures
    ]
    header: list[object] = ["arm", "phase", "attempt", "seed", "then", "error"]
    phases = table(header, rows) if rows else tag("p", "No phase failed.")
    broken: list[list[object]] = [
        [column.name, one.phase, one.attempt, one.index, len(one.events), _short(one.error)]
        for column in found
        for side in column.sides
        for one in side.arm.requests
        if one.error is not None
    ]
    header = ["arm", "phase", "attempt", "index", "events before it", "error"]
    requests = table(header, broken) if broken else tag("p", "No request ended in an error.")
    cannot = [
        tag("li", f"{arm.name}: ", tag("code", what), f": {why}")
        for arm in told.arms
        for what, why in arm.not_applicable.items()
    ]
    parts = [phases, tag("h3", "Requests that ended in an error"), requests]
    if cannot:
        parts += [tag("h3", "Not applicable"), tag("ul", *cannot)]
    return _section("failures", "Failures", *parts)


def _short(error: str) -> str:
    return without_folders(error)[:_TEXT_MAX]


def _provenance(told: Summary) -> Markup:
    header: list[object] = ["run", "seed", "started", "mode", "commit", "sources", "model", "order"]
    runs: list[list[object]] = [
        [
            *(tag("code", run.id), run.seed, run.started, run.mode),
            tag("code", run.commit[:12] or wording.NONE),
            tag("code", run.source_sha256[:12]),
            f"{run.model} ({run.config_sha256[:12] or 'unknown'})",
            ", ".join(run.order),
        ]
        for run in told.runs
    ]
    facts = [
        tag("p", tag("b", f"{name}: "), each)
        for name, all_told in (
            ("Machine", [wording.facts(run.machine) for run in told.runs]),
            ("Workload", [wording.facts(run.workload) for run in told.runs]),
            ("Preflight", ["; ".join(run.checks) or "none" for run in told.runs]),
        )
        for each in dict.fromkeys(all_told)
    ]
    commands = tag("pre", "\n".join(told.commands)) if told.commands else None
    return _section(
        "provenance",
        "Where this comes from",
        commands,
        table(header, runs),
        *facts,
        _arms(told.arms),
    )


def _arms(arms: Sequence[ArmFacts]) -> Markup:
    header: list[object] = [
        *("arm", "kind", "command", "BLAS", "versions", "settings"),
        *("stability", "others", "requests", "counted by us"),
    ]
    rows: list[list[object]] = [
        [
            *(arm.name, arm.kind),
            tag("code", shlex.join(arm.command)) if arm.command else "ran already",
            *(arm.blas or "unknown", wording.facts(arm.versions)),
            wording.facts(arm.settings) or "defaults",
            wording.NONE if arm.stability is None else f"{arm.stability:.3f}",
            wording.NONE if arm.others is None else f"{arm.others:.0%}",
            join(arm.requests, tag("small", f"errors: {wording.errors(arm) or 'none'}")),
            arm.uncounted,
        ]
        for arm in arms
    ]
    words = (
        "Stability is the largest decode sample over the smallest; others is the share of the "
        "machine that other processes had at most; requests whose tokens the server did not count "
        "are counted by us, one an event."
    )
    return join(tag("h3", "Arms"), table(header, rows), tag("p", words, class_="soft"))
