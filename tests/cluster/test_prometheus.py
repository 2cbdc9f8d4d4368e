"""A real Prometheus on a real cluster: scrapes, rules, queries of the dashboard, alerts."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bramley.bench.panels import DASHBOARD, Prometheus, queries
from bramley.client.client import AsyncClient
from bramley.common.status import RemoteError
from bramley.router.families import PREFIX, TABLE
from support.cluster import Cluster
from support.prometheus import FOLDER, ROUTER, STORE, needs_prometheus, prometheus, until
from support.promql import Matcher, Named, named

TESTS = Path(__file__).parents[1]
WRITE_MODEL = (
    "import sys; from pathlib import Path; from support.tiny_models import save_tiny;"
    "save_tiny(Path(sys.argv[1]), 'full', seed=5)"
)
TARGET_LABELS = {"instance", "job", "le"}
# Of these panels nothing is to be seen while nothing happens.
QUIET = {"Breakers that are not closed", "Snapshots lost"}

Exposed = dict[str, dict[str, set[str]]]


def toml(folder: Path) -> str:
    """A model that serves, one that cannot be loaded, and a store that can be scraped."""
    return f"""
[models.tiny]
path = "{folder}/tiny"
max_rows = 1 # so that the next prompt takes the row of the one before, which the store then has
[models.broken]
path = "{folder}/missing"
[store]
http = "127.0.0.1:0"
"""


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Cluster]:
    """Run a cluster that answers a request now and then."""
    folder = tmp_path_factory.mktemp("watched")
    write = [sys.executable, "-c", WRITE_MODEL, str(folder / "tiny")]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    subprocess.run(write, check=True, timeout=60, env=env)  # noqa: ASYNC221
    made = Cluster(folder, toml(folder))
    await made.up()
    asking = asyncio.create_task(ask(made.node.addresses["grpc"]))
    try:
        yield made
    finally:
        asking.cancel()
        await asyncio.wait([asking])
        await made.close()


async def ask(target: str) -> None:
    """Ask for short answers again and again; a part of them is refused."""
    questions = (("tiny", "x" * 300), ("broken", ""), ("tiny", "y" * 300))
    async with AsyncClient(target) as client:
        for model, prompt in cycle(questions):
            with suppress(RemoteError):
                await client.complete(model, prompt, max_tokens=4, max_queue_s=1.0)
            await asyncio.sleep(0.25)


@pytest.fixture(scope="module")
async def targets(cluster: Cluster) -> dict[str, str]:
    """Find where router and store are scraped, by their default addresses."""
    store = await cluster.running("store", "store")
    return {ROUTER: cluster.node.addresses["http"], STORE: store.addresses["http"]}


@pytest.fixture(scope="module")
async def watcher(
    targets: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Prometheus]:
    """Run a Prometheus that watches the cluster."""
    async with prometheus(tmp_path_factory.mktemp("prometheus"), targets) as made:
        yield made


def rules() -> list[dict[str, Any]]:
    told = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def expressions() -> dict[str, Named]:
    """Read every expression of ours, by what it belongs to."""
    panels = {
        f"panel {query.panel}: {query.expr}": named(query.expr)
        for query in queries(json.loads(DASHBOARD.read_text()))
    }
    return panels | {f"alert {rule['alert']}": named(rule["expr"]) for rule in rules()}


def exposed(address: str) -> Exposed:
    """Scrape: the values of each label of each sample, by the sample's name."""
    connection = HTTPConnection(address, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found: Exposed = {}
    for family in text_string_to_metric_families(text):
        if not family.samples:  # nothing that it counts has happened yet
            found |= of_table(family.name)
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def of_table(family: str) -> Exposed:
    """Read from the router's own table which labels a counter is to have."""
    own = [one for one in TABLE if PREFIX + one.name == f"{family}_total"]
    return {PREFIX + one.name: {label: set() for label in one.labels} for one in own}


def is_there(matcher: Matcher, there: Exposed) -> bool:
    """Whether the cluster can have a series that the matcher speaks of."""
    values = set(matcher.values())
    if matcher.label == "code":  # of the statuses that a request may end with
        return values <= {code.name for code in grpc.StatusCode}
    if matcher.metric == "up":
        return values <= {"bramley-router", "bramley-store"}
    return values <= there[matcher.metric].get(matcher.label, set())


async def test_whatever_an_expression_names_is_exposed(targets: dict[str, str]) -> None:
    def all_there() -> Exposed:
        there = exposed(targets[ROUTER]) | exposed(targets[STORE])
        there["up"] = {"job": set(), "instance": set()}
        lookups = there.get("bramley_router_cache_lookups_total", {}).get("result", set())
        return there if "hit" in lookups else {}

    there: Exposed = await until(all_there)
    for whose, names in expressions().items():
        assert names.metrics <= there.keys(), whose
        labels = {label for metric in names.metrics for label in there[metric]}
        assert names.grouping <= labels | TARGET_LABELS, whose
        assert all(is_there(matcher, there) for matcher in names.matchers), whose


@needs_prometheus
@pytest.mark.parametrize(
    "command",
    ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"],
)
def test_promtool_takes_our_files(command: str) -> None:
    done = subprocess.run(
        [shutil.which("promtool") or "", *command.split()],
        check=False,
        capture_output=True,
        text=True,
        cwd=FOLDER,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
async def test_both_are_scraped_and_every_rule_is_healthy(watcher: Prometheus) -> None:
    def all_up() -> bool:
        active = watcher.get("targets", state="active")["activeTargets"]
        return len(active) == 2 and all(target["health"] == "up" for target in active)

    def evaluated() -> list[dict[str, Any]]:
        groups = watcher.get("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else []

    await until(all_up)
    found: list[dict[str, Any]] = await until(evaluated)
    assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules()}
    assert {
        rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"
    } == {}


async def firing(watcher: Prometheus, alert: str) -> dict[str, str]:
    """Wait until an alert fires: its labels."""

    def fires() -> dict[str, str]:
        for told in watcher.get("alerts")["alerts"]:
            if told["labels"]["alertname"] == alert and told["state"] == "firing":
                return told["labels"]
        return {}

    return await until(fires)


@needs_prometheus
async def test_a_model_that_cannot_be_loaded_is_alerted(watcher: Prometheus) -> None:
    labels = await firing(watcher, "BramleyModelFailed")
    assert labels["model"] == "broken"
    assert labels["severity"] == "critical"


@needs_prometheus
async def test_a_worker_that_keeps_dying_is_alerted(watcher: Prometheus, cluster: Cluster) -> None:
    epoch = 0
    for _ in range(4):
        epoch = (await cluster.running("worker", "tiny", after=epoch)).epoch
        await cluster.kill("worker", "tiny")
    labels = await firing(watcher, "BramleyCrashLoop")
    assert labels["model"] == "tiny"


@needs_prometheus
async def test_every_panel_of_the_dashboard_shows_something(watcher: Prometheus) -> None:
    def empty() -> set[str]:
        shown: dict[str, bool] = {}
        for query in queries(json.loads(DASHBOARD.read_text())):  # each raises if it is refused
            curves = watcher.curves(query, seconds=60, step_s=2)
            has_data = any(curve.points for curve in curves)
            shown[query.panel] = shown.get(query.panel, False) or has_data
            assert not any("{{" in curve.label for curve in curves), query
        return {panel for panel, has_data in shown.items() if not has_data}

    last: set[str] = set()

    def only_quiet_ones() -> bool:
        last.clear()
        last.update(empty())
        return last <= QUIET

    with suppress(TimeoutError):
        await until(only_quiet_ones)
    assert last <= QUIET


@needs_prometheus
async def test_a_router_that_hangs_is_alerted_until_it_is_back(
    watcher: Prometheus, cluster: Cluster
) -> None:
    router = psutil.Process((await cluster.running("router", "router")).pid)
    router.send_signal(signal.SIGSTOP)
    try:
        labels = await firing(watcher, "BramleyRouterDown")
    finally:
        router.send_signal(signal.SIGCONT)
    assert labels["job"] == "bramley-router"

    def is_quiet() -> bool:
        alerts = watcher.get("alerts")["alerts"]
        return all(told["labels"]["alertname"] != "BramleyRouterDown" for told in alerts)

    await until(is_quiet)
