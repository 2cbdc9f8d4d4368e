"""How `bramley top` looks: tables that leave columns out where a terminal is narrow."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bramley.client.commands.screen import size_text
from bramley.client.overview import CacheRow, ModelRow, Overview, Sample, WorkerRow, overview

_WIDE, _MIDDLE = 100, 64  # terminal columns, for all columns of a table and for most of them

# The columns of a table: how wide a terminal has to be for it, and its name.
_MODELS = (
    *((0, "model"), (0, "state"), (0, "run"), (0, "wait")),
    *((0, "tok/s"), (_MIDDLE, "first token"), (_WIDE, "reserved"), (_WIDE, "memory")),
)
_WORKERS = (
    *((0, "worker"), (0, "pid"), (0, "state"), (0, "restarts")),
    *((_MIDDLE, "in step"), (_MIDDLE, "resident"), (_WIDE, "last exit")),
)
_ELASTIC = {"model", "last exit"}  # give way first


def drawn(samples: Sequence[Sample], width: int) -> RenderableType:
    """Draw the last of ``samples`` for a terminal of so many columns."""
    shown = overview(samples)
    models = _table(_MODELS, [_model_cells(row) for row in shown.models], width)
    workers = _table(_WORKERS, [_worker_cells(row) for row in shown.workers], width)
    foot = map(_line, _foot(shown))
    return Group(_line(_head(shown)), "", models, "", workers, "", *foot)


def _table(columns: Sequence[tuple[int, str]], rows: Sequence[Sequence[str]], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    shown = [place for place, (least, _) in enumerate(columns) if width >= least]
    for place in shown:
        name = columns[place][1]
        table.add_column(name, no_wrap=name not in _ELASTIC, overflow="ellipsis")
    for row in rows:
        table.add_row(*(_line(row[place]) for place in shown))
    return table


def _line(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")


def _model_cells(row: ModelRow) -> list[str]:
    model = row.model
    state = f"loading {model.load_progress:.0%}" if model.state == "loading" else model.state
    waiting = ", ".join(f"{count} {name}" for name, count in row.waiting.items() if count)
    return [
        model.name + (" (pinned)" if model.pinned else ""),
        state,
        str(model.requests_running),
        waiting or str(model.requests_waiting),
        "" if row.tokens_s is None else f"{row.tokens_s:.0f}",
        "" if row.ttft_s is None else f"{row.ttft_s:.2f} s",
        _size(model.reserved_bytes),
        _size(model.memory_bytes),
    ]


def _worker_cells(row: WorkerRow) -> list[str]:
    process = row.process
    return [
        process.name,
        str(process.pid or ""),
        process.state,
        str(process.restarts),
        "" if row.step_age_s is None else f"{row.step_age_s:.1f} s",
        _size(row.resident_bytes),
        process.last_exit,
    ]


def _head(shown: Overview) -> str:
    status = shown.status
    if status.version is None:
        return f"bramley {status.state}: the router does not answer"
    running = sum(row.model.requests_running for row in shown.models)
    waiting = sum(row.model.requests_waiting for row in shown.models)
    tokens = sum(row.tokens_s or 0.0 for row in shown.models)
    return (
        f"bramley {status.version}  {status.state}  {running} running  {waiting} waiting"
        f"  {tokens:.0f} tok/s"
    )


def _foot(shown: Overview) -> list[str]:
    lines: list[str] = []
    memory = shown.status.memory
    if memory is not None and memory.budget_bytes:
        used, budget = size_text(memory.reserved_bytes), size_text(memory.budget_bytes)
        store = size_text(memory.store_bytes)
        lines.append(f"memory  {used} of {budget} reserved, cache store {store}")
    lines += ["cache   no store"] if shown.cache is None else _cache_lines(shown.cache)
    http = shown.status.addresses["http"]
    if http and shown.status.version is not None and not shown.has_metrics:
        lines.append(f"metrics none at {http}")
    return lines


def _cache_lines(cache: CacheRow) -> list[str]:
    gauges = cache.gauges
    shares = [
        f"{share:.0%} of {what}"
        for share, what in (
            (cache.cached_share, "prompt tokens not computed"),
            (cache.hit_share, "lookups hit"),
        )
        if share is not None
    ]
    tiers = [_tier("RAM", gauges, "ram")]
    if gauges.get("ssd_is_on"):
        tiers.append(_tier("SSD", gauges, "ssd"))
    if gauges.get("ssd_is_failing"):
        tiers.append("failing: full" if gauges.get("breaker_is_full") else "failing: sick")
    return [f"cache   {', '.join(tiers)}", *(f"        {each}" for each in shares)]


def _tier(name: str, gauges: Mapping[str, int], tier: str) -> str:
    used, budget = (gauges.get(f"{tier}_{what}", 0) for what in ("bytes", "budget_bytes"))
    return f"{name} {size_text(used)} of {size_text(budget)}"


def _size(count: float | None) -> str:
    return size_text(int(count)) if count else ""
