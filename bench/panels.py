"""Asks a Prometheus what the panels of the Grafana dashboard ask."""

import json
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "bramley.json"

Points = list[tuple[float, float]]


class Query(NamedTuple):
    """One query of a panel; its variables are not filled in yet."""

    panel: str
    expr: str
    legend: str


class Curve(NamedTuple):
    """One series, with the words that name it."""

    label: str
    points: Points


def queries(dashboard: Mapping[str, Any]) -> Iterator[Query]:
    """List every query of a dashboard.

    Yields:
        Each, in the order of the panels.
    """
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Query(panel["title"], target["expr"], target["legendFormat"])


def fill(expr: str, seconds: int, rate_s: int, model: str = ".*") -> str:
    """Put values in the place of a query's variables, as Grafana does."""
    values = {"$__rate_interval": f"{rate_s}s", "$__range": f"{seconds}s", "$model": model}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


class Prometheus:
    """The HTTP interface of a Prometheus at ``address`` ("127.0.0.1:9090")."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: object) -> Any:  # noqa: ANN401
        """Ask.

        Returns:
            The data of the answer.

        Raises:
            ValueError: it answered with an error.
        """
        connection = HTTPConnection(self._address, timeout=10)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer["status"] != "success":
            raise ValueError(f"{path}: {answer['error']}")
        return answer["data"]

    def curves(self, query: Query, seconds: int, step_s: int) -> list[Curve]:
        """Ask for the last ``seconds`` of a query, without what is no number."""
        now_s = time.time()
        expr = fill(query.expr, seconds, rate_s=4 * step_s)
        told = self.get(
            "query_range", query=expr, start=now_s - seconds, end=now_s, step=f"{step_s}s"
        )
        return [
            Curve(
                _label(query.legend, series["metric"]),
                [(float(at), float(value)) for at, value in series["values"] if value != "NaN"],
            )
            for series in told["result"]
        ]


def _label(legend: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend
