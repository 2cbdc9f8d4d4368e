"""How figures are said to people, in every page alike."""

from typing import Any, cast

from bramley.bench.serve.columns import Against, Spread
from bramley.bench.serve.goals import Goal, in_unit
from bramley.bench.serve.metrics import Better
from bramley.bench.serve.summary import ArmFacts, Summary

NONE = "\N{EN DASH}"
KILL = "kill"  # the phase whose requests end in an error
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def value(number: float, unit: str) -> str:
    """Say one value with its unit."""
    if number == 0 and unit == "s":
        return "0"
    if unit == "bytes":
        at = 0
        while number >= 1024 and at < len(_BYTES) - 1:
            number, at = number / 1024, at + 1
        return f"{_digits(number)} {_BYTES[at]}"
    if unit == "s" and number < 1:
        return f"{_digits(number * 1000)} ms"
    if unit == "share":
        return f"{number:.1%}"
    return f"{_digits(number)} {unit}"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def median(spread: Spread | None, unit: str) -> str:
    """Say what is in the middle."""
    return NONE if spread is None else value(spread.median, unit)


def spread(told: Spread | None, unit: str) -> str:
    """Say how far samples are apart, and how many there are."""
    if told is None:
        return ""
    if told.samples == 1:
        return "one sample"
    return f"{value(told.low, unit)} to {value(told.high, unit)}, {told.samples} samples"


def ratio(told: Against | None) -> str:
    """Say a ratio, and its interval if there is one."""
    if told is None or told.ratio is None:
        return ""
    said = f"{told.ratio:.3g}x"
    return said if told.low is None else f"{said} [{told.low:.3g}, {told.high:.3g}]"


def direction(told: Against | None, better: Better) -> str:
    """Say whether a ratio is for the better; nothing where its interval holds 1."""
    if told is None or told.ratio is None or better == "neither":
        return ""
    if told.low is not None and told.high is not None and told.low <= 1 <= told.high:
        return "no difference shown"
    if f"{told.ratio:.3g}" == "1":
        return "equal"
    return "better" if (told.ratio > 1) == (better == "higher") else "worse"


def basis(told: Against | None) -> str:
    """Say what a ratio rests on."""
    if told is None or told.ratio is None:
        return ""
    pairs = f"{told.pairs} pairs" if told.pairs != 1 else "one pair"
    seeds = f"{told.seeds} seeds" if told.seeds != 1 else "one seed"
    return f"{pairs}, {seeds}"


def goal_values(goal: Goal) -> tuple[str, str]:
    """Say what is required, and what was reached with its interval."""
    sign, bound = goal.required.split()
    sign = {">=": "≥", "<=": "≤"}[sign]
    reached = NONE if goal.reached is None else in_unit(goal.reached, goal.unit)
    if goal.low is not None and goal.high is not None:
        reached += f" [{goal.low:.3g}, {goal.high:.3g}]"
    space = "" if goal.unit in {"x", ""} else " "
    return f"{sign} {bound}{space}{goal.unit}", reached


def facts(told: dict[str, Any]) -> str:
    """Say a table of facts on one line."""
    return ", ".join(
        f"{key} {_fact(key, content)}" for key, content in sorted(told.items()) if content != ""
    )


def _fact(key: str, content: object) -> str:
    if key.endswith("_bytes") and isinstance(content, int):
        return value(float(content), "bytes")
    if isinstance(content, dict):
        return f"({facts(cast('dict[str, Any]', content))})"
    if isinstance(content, list):
        return " ".join(map(str, cast("list[Any]", content)))
    return str(content)


def terms(told: Summary) -> str:
    """Say on which terms there are ratios, beyond the rules; empty if there is nothing to add."""
    cells = (cell for line in told.lines for cell in line.cells if cell.against)
    parts = list(dict.fromkeys(cell.against.unsure for cell in cells if cell.against))
    if heads := [run.shared_tokens for run in told.runs if run.shared_tokens]:
        parts.append(f"up to {max(heads)} cached tokens count as none: all prompts begin with them")
    if told.slack:
        parts.append(f"cached tokens may differ by up to {told.slack}")
    said = "; ".join(filter(None, parts))
    return f"{said[0].upper()}{said[1:]}." if said else ""


def errors(arm: ArmFacts) -> str:
    """Say which requests of an arm ended in an error."""
    phases = (
        f"{count} of {phase}" + (", which are cut off on purpose" if phase == KILL else "")
        for phase, count in sorted(arm.errors.items())
    )
    return "; ".join(phases)
