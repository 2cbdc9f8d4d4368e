"""The dashboard and the alerts as files: whole, within the grid, with a runbook each."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from bramley.bench.dashboard import number
from bramley.bench.panels import DASHBOARD, fill, queries
from support.promql import Matcher, named

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRID_COLUMNS = 24
# Grafana's own names of units, and those of a suffix of our own.
UNITS = {"short", "s", "bytes", "reqps", "ops", "percentunit", "suffix: tok/s"}


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def alerts() -> list[dict[str, Any]]:
    told = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def is_apart(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] + one["w"] <= other["x"]
        or other["x"] + other["w"] <= one["x"]
        or one["y"] + one["h"] <= other["y"]
        or other["y"] + other["h"] <= one["y"]
    )


def test_no_panel_covers_another_or_leaves_the_grid() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert all(place["x"] + place["w"] <= GRID_COLUMNS for place in places)
    assert all(is_apart(one, other) for one, other in combinations(places, 2))


def test_each_panel_has_a_number_of_its_own_a_unit_and_queries_of_the_chosen_source() -> None:
    panels = dashboard()["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(numbers) == len(set(numbers))
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
            letters = [target["refId"] for target in panel["targets"]]
            assert letters == [chr(ord("A") + place) for place in range(len(letters))]


def test_no_variable_is_left_when_a_query_is_asked() -> None:
    for query in queries(dashboard()):
        assert "$" not in fill(query.expr, seconds=60, rate_s=20)


def test_every_alert_has_a_severity_and_a_runbook_that_is_there() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    headings = {line.strip("# ").lower() for line in page.splitlines() if line.startswith("#")}
    for rule in alerts():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/monitoring.md"
        assert anchor == rule["alert"].lower()
        assert anchor in headings
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_runbook_is_of_an_alert_that_is_there() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    told = re.findall(r"^#+ (Bramley\w+)$", page, re.MULTILINE)
    assert told == [rule["alert"] for rule in alerts()]


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    told = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())
    shown: dict[str, list[bool]] = {}
    for test in told["tests"]:
        for case in test["alert_rule_test"]:
            shown.setdefault(case["alertname"], []).append("exp_alerts" in case)
    for rule in alerts():
        assert shown[rule["alert"]] == [False, False, True]  # healthy, not yet, sick


def test_an_expression_s_names_are_found() -> None:
    found = named(
        'sum by (model, le) (rate(a_bucket{x=~"b|c", y!="d)"}[5m])) > 0.5 and on (z) absent(e)'
    )
    assert found.metrics == {"a_bucket", "e"}
    assert found.grouping == {"model", "le", "z"}
    assert found.matchers == [
        Matcher("a_bucket", "x", "=~", "b|c"),
        Matcher("a_bucket", "y", "!=", "d)"),
    ]
    assert [matcher.values() for matcher in found.matchers] == [["b", "c"], ["d)"]]


def test_values_are_worded_as_grafana_words_them() -> None:
    assert number(0.25, "percentunit") == "25%"
    assert number(0.0025, "s") == "2.5 ms"
    assert number(3 << 29, "bytes") == "1.5 GiB"
    assert number(1500, "suffix: tok/s") == "1.5k tok/s"
