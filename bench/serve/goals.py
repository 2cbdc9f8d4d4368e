"""Holds what the benchmark measured of bramley against what is required of it."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from bramley.bench.figures import Required
from bramley.bench.serve.columns import Against, Column, against, within

OURS, PEER = "bramley", "mlx_lm.server"  # kinds of arms
ON_GPU = {"mlx-metal", "mlx-cuda-13"}  # packages whose MLX computes there
CHUNK_S = 0.25  # of a prompt that is computed beside running streams
SHORT_MAX_S = 0.8

Verdict = Literal["met", "missed", "not shown"]


class Goal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One requirement, and whether it is met.

    Attributes:
        what: is required.
        arm: of which it is.
        metrics: that show it; the first is the one that falls short.
        required: value, in words.
        reached: value; None where it was not measured.
        unit: of both; "x" is of ratios.
        low: of the interval of a ratio, if there is one.
        high: likewise.
        note: why it is not shown, or what else to know.
    """

    what: str
    arm: str
    metrics: list[str]
    required: str
    reached: float | None
    unit: str
    verdict: Verdict
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def gap(self) -> str:
        """How far it is from being met, in words; empty if it is."""
        if self.verdict != "missed" or self.reached is None:
            return ""
        bound = float(self.required.split()[1])
        return in_unit(abs(self.reached - bound), self.unit)


def in_unit(number: float, unit: str) -> str:
    """Say a value of a goal."""
    return f"{number:.3g}{unit}" if unit in {"x", ""} else f"{number:.3g} {unit}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a requirement looks at: a value, and what to say of it."""

    value: float | None
    note: str = ""
    spread: Against | None = None
    is_enough: bool = True


_Look = Callable[[Column, Column | None], _Seen]


@dataclass(frozen=True, slots=True)
class _Row:
    what: str
    metrics: tuple[str, ...]
    required: Required
    look: _Look
    unit: str = "x"


def goals(all_columns: Sequence[Column], slack: int = 0) -> list[Goal]:
    """Judge each column of ours; beside the peer of its own runs, if it has one.

    Args:
        all_columns: of all arms.
        slack: of cached tokens, in ratios to the peer.

    Returns:
        A goal for each requirement that holds on the machine.
    """
    found: list[Goal] = []
    for column in all_columns:
        if column.arm.kind != OURS:
            continue
        ids = {side.run.id for side in column.sides}
        peers = (each for each in all_columns if each.arm.kind == PEER)
        peer = next((one for one in peers if ids & {side.run.id for side in one.sides}), None)
        found += [_judge(row, column, peer) for row in _rows(column, slack)]
    return found


def _judge(row: _Row, column: Column, peer: Column | None) -> Goal:
    seen = row.look(column, peer)
    verdict: Verdict = "not shown"
    is_measured = all(side.run.mode == "measurement" for side in column.sides)
    if is_measured and seen.value is not None and seen.is_enough:
        verdict = "met" if row.required.is_met(seen.value) else "missed"
    return Goal(
        what=row.what,
        arm=column.name,
        metrics=list(row.metrics),
        required=str(row.required),
        reached=seen.value,
        unit=row.unit,
        verdict=verdict,
        low=seen.spread and seen.spread.low,
        high=seen.spread and seen.spread.high,
        note=seen.note,
    )


def _rows(column: Column, slack: int) -> Iterator[_Row]:
    """Make the requirements that hold on the column's machine.

    Yields:
        Each.
    """
    is_gpu = not ON_GPU.isdisjoint(column.run.machine.get("packages", {}))
    # At 4 and 8 streams; on the CPU 85 % of what the products alone would gain: 2.1 and 3.2.
    gains = {4: 3.3, 8: 6.0} if is_gpu else {4: 1.785, 8: 2.72}
    for streams, gain in gains.items():
        rate = f"aggregate_rate@{streams}"
        if not is_gpu:
            what = f"{streams} streams together, against {PEER}"
            yield _Row(what, (rate,), Required(">=", 1.15), _beside_peer(rate, slack))
        what = f"{streams} streams together, against one"
        one = "aggregate_rate@1"
        yield _Row(what, (rate, one), Required(">=", gain), _beside(rate, one))
    what = f"one stream, against {PEER}"
    yield _Row(what, ("decode_rate",), Required(">=", 1.0), _beside_peer("decode_rate", slack))
    if not is_gpu:
        yield from _cached_rows(column)
    yield from _other_rows(column)


def _cached_rows(column: Column) -> Iterator[_Row]:
    for cold, warm in (("ttft_cold", "ttft_repeat"), ("context_ttft", "context_repeat_ttft")):
        tokens = _prompt_tokens(column, warm)
        least = 100.0 if tokens >= 2000 else 20.0
        what = f"first token of a prompt once more, against anew ({cold} over {warm})"
        yield _Row(what, (warm, cold), Required(">=", least), _faster(cold, warm, 600))
    what = "first token after a restart, against anew"
    cold, warm = "restart_cold_ttft", "restart_ttft"
    yield _Row(what, (warm, cold), Required(">=", 40.0), _faster(cold, warm, 2000))
    what = "first token after SIGKILL, against once more"
    metrics = ("kill_ttft", "ttft_repeat")
    yield _Row(what, metrics, Required("<=", 1.5), _beside(*metrics))


def _other_rows(column: Column) -> Iterator[_Row]:
    idle = column.spread("mixed_idle_ttft")
    most = min(idle.median + 2 * CHUNK_S, SHORT_MAX_S) if idle else SHORT_MAX_S
    for what, metric, required, unit in (
        ("a short request while a long prompt is computed", "mixed_short_ttft", most, "s"),
        ("longest gap of running streams meanwhile", "mixed_gap", 0.6, "s"),
        ("start of the processes until they serve", "ready", 2.5, "s"),
    ):
        bound = Required("<=", float(f"{required:.3g}"))
        yield _Row(what, (metric,), bound, _median(metric), unit)
    what, metric = "share of their rate that running streams keep meanwhile", "mixed_kept"
    yield _Row(what, (metric,), Required(">=", 0.45), _median(metric), "")


def _prompt_tokens(column: Column, metric: str) -> float:
    """Tell how long a metric's prompts are; 0 where nobody says."""
    counts = [
        request.prompt_tokens or 0
        for side in column.sides
        for sample in side.samples(metric)
        for request in side.requests(sample)
    ]
    return statistics.median(counts) if counts else 0.0


def _seen(told: Against, note: str = "", *, is_enough: bool = True) -> _Seen:
    notes = [note, *told.reasons] if told.ratio is None else [note]
    return _Seen(told.ratio, "; ".join(filter(None, notes)), told, is_enough)


def _beside_peer(metric: str, slack: int) -> _Look:
    def look(column: Column, peer: Column | None) -> _Seen:
        if peer is None:
            return _Seen(None, f"no run had {PEER} beside it")
        return _seen(against(column, peer, metric, slack))

    return look


def _beside(above: str, below: str) -> _Look:
    return lambda column, _: _seen(within(column, above, below))


def _faster(cold: str, warm: str, tokens_min: int) -> _Look:
    def look(column: Column, _: Column | None) -> _Seen:
        tokens = _prompt_tokens(column, warm)
        if not tokens:
            return _Seen(None, f"{warm} was not measured, or nobody told its prompts' tokens")
        note = f"prompts of {tokens:.0f} tokens"
        is_enough = tokens >= tokens_min
        if not is_enough:
            note += f"; it is required from {tokens_min} on"
        return _seen(within(column, cold, warm), note, is_enough=is_enough)

    return look


def _median(metric: str) -> _Look:
    def look(column: Column, _: Column | None) -> _Seen:
        found = column.spread(metric)
        return _Seen(None, "not measured") if found is None else _Seen(found.median)

    return look
