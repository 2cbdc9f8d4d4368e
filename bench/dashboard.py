"""Draws the Grafana dashboard without Grafana: asks a Prometheus its queries, makes one page."""

import argparse
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bramley.bench.panels import DASHBOARD, Curve, Prometheus, Query

_COLUMN, _CELL, _GAP = 60, 34, 6  # pixels of a column and of a line of Grafana's grid
_LEFT, _TOP, _BOTTOM = 58, 26, 34  # of a panel, around its curves
_COLOURS = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0")
_STYLE = """body{background:#111217;color:#ccccdc;font:11px sans-serif;margin:8px}
div.panel,div.row{position:absolute;box-sizing:border-box}div.row{font-size:14px;padding-top:12px}
div.panel{background:#181b1f;border:1px solid #2c3235}text{fill:#9fa7b3;font:10px sans-serif}"""


def number(value: float, unit: str) -> str:
    """Say a value for people."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    words = {"reqps": " req/s", "ops": " /s", "suffix: tok/s": " tok/s"}.get(unit, "")
    step, prefixes = (1024.0, "KMGT") if unit == "bytes" else (1000.0, "kMGT")
    prefix = ""
    for each in prefixes:
        if abs(value) < step:
            break
        value, prefix = value / step, each
    ending = f" {prefix}iB" if unit == "bytes" and prefix else prefix
    digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}{ending}{words}"


def page(dashboard: Mapping[str, Any], prometheus: Prometheus, seconds: int, step_s: int) -> str:
    """Draw all of it."""
    parts = [f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style>"]
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        left, top = grid["x"] * _COLUMN, grid["y"] * _CELL
        width, height = grid["w"] * _COLUMN - _GAP, grid["h"] * _CELL - _GAP
        place = f"left:{left}px;top:{top}px;width:{width}px;height:{height}px"
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f'<div class=row style="{place}">{title}</div>')
            continue
        curves = [
            curve
            for target in panel["targets"]
            for curve in prometheus.curves(
                Query(title, target["expr"], target["legendFormat"]), seconds, step_s
            )
        ]
        draw = _stat if panel["type"] == "stat" else _graph
        inner = draw(panel["fieldConfig"]["defaults"], curves, width, height)
        svg = f"<svg width={width} height={height}>{_text(8, 16, title)}{inner}</svg>"
        parts.append(f'<div class=panel style="{place}">{svg}</div>')
    return "\n".join(parts)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'


def _stat(look: Mapping[str, Any], curves: Sequence[Curve], width: int, height: int) -> str:
    points = curves[0].points if curves else []
    if not points:
        return _text(width / 2, height / 2, "No data", 'text-anchor="middle"')
    value = points[-1][1]
    colour = [
        step["color"] for step in look["thresholds"]["steps"] if value >= (step["value"] or 0)
    ][-1]
    words = number(value, look["unit"])
    for mapping in look.get("mappings", ()):
        shown = mapping["options"].get(f"{value:g}", {"text": words, "color": colour})
        words, colour = shown["text"], shown["color"]
    fill_with = "#ccccdc" if colour == "text" else colour
    style = f'text-anchor="middle" style="font-size:26px;fill:{fill_with}"'
    return _text(width / 2, height / 2 + 14, words, style)


def _graph(look: Mapping[str, Any], curves: Sequence[Curve], width: int, height: int) -> str:
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return _text(width / 2, height / 2, "No data", 'text-anchor="middle"')
    if look["custom"]["stacking"]["mode"] == "normal":
        drawn = list(_stacked(drawn))
    times = [at for curve in drawn for at, _ in curve.points]
    top = look.get("max") or max(value for curve in drawn for _, value in curve.points) * 1.1 or 1.0
    first, span = min(times), (max(times) - min(times)) or 1.0
    wide, high = width - _LEFT - 8, height - _TOP - _BOTTOM
    parts: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + high * (1 - share)
        parts.append(f'<path d="M{_LEFT} {y:.0f}h{wide}" stroke="#2c3235"/>')
        parts.append(
            _text(_LEFT - 4, y + 3, number(top * share, look["unit"]), 'text-anchor="end"')
        )
    x = float(_LEFT)
    for index, curve in enumerate(drawn):
        colour = _COLOURS[index % len(_COLOURS)]
        dots = " ".join(
            f"{_LEFT + wide * (at - first) / span:.1f},{_TOP + high * (1 - value / top):.1f}"
            for at, value in curve.points
        )
        parts.append(
            f'<polyline points="{dots}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        parts.append(_text(x, height - 10, html.escape(curve.label), f'style="fill:{colour}"'))
        x += 6 * len(curve.label) + 14
    return "".join(parts)


def _stacked(curves: Sequence[Curve]) -> Iterator[Curve]:
    """Put each curve on those before it.

    Yields:
        Each, raised.
    """
    below: dict[float, float] = {}
    for curve in curves:
        for at, value in curve.points:
            below[at] = below.get(at, 0.0) + value
        yield Curve(curve.label, [(at, below[at]) for at, _ in curve.points])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m bramley.bench.dashboard", description=__doc__)
    parser.add_argument("--prometheus", default="127.0.0.1:9090", metavar="HOST:PORT")
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD, metavar="FILE")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--step", type=int, default=10, metavar="SECONDS")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    dashboard = json.loads(given.dashboard.read_text())
    told = page(dashboard, Prometheus(given.prometheus), given.minutes * 60, given.step)
    given.out.write_text(told)


if __name__ == "__main__":
    main()
