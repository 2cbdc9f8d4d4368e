"""Files for systemd, launchd and compose: commands are ours, times are those of the settings."""

import json
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from bramley.client.cli import app
from bramley.deploy.__main__ import EXIT_OWNED, EXIT_SETTINGS
from bramley.deploy.lease import EXIT_FENCED
from bramley.deploy.settings import ClusterSettings, load

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "systemd" / "bramley.service"
PLISTS = sorted((DEPLOY / "launchd").glob("*.plist"))
COMPOSE = DEPLOY / "compose"

DEFAULTS = ClusterSettings()
# Who calls is stopped before whom it calls, so that the times add up.
STOP_S = (
    3 * DEFAULTS.node.stop_timeout_s
    + DEFAULTS.router.drain_timeout_s
    + DEFAULTS.node.flush_timeout_s
)
SLACK_S = 20  # for the supervisor's own work

Unit = dict[str, list[str]]


def is_ours(*arguments: str) -> bool:
    """Whether ``bramley`` knows a command and all its options; it is not run."""
    return CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def unit(section: str) -> Unit:
    """Read a section of the unit: the values of each key, in their order."""
    found: Unit = {}
    current = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif line and not line.startswith("#") and current == section:
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def plist(path: Path) -> dict[str, Any]:
    return plistlib.loads(path.read_bytes())


def services() -> dict[str, Any]:
    return yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]


def comments(text: str) -> str:
    return "\n".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("arguments", [("upp",), ("up", "--detachd"), ("--state", "up")])
def test_a_command_that_is_not_ours_would_be_seen(arguments: Sequence[str]) -> None:
    assert not is_ours(*arguments)


def test_what_systemd_runs_is_a_command_of_ours_in_the_foreground() -> None:
    service = unit("Service")
    for key in ("ExecStart", "ExecReload"):
        for value in service.get(key, []):
            program, *arguments = shlex.split(value)
            assert program == "/opt/bramley/bin/bramley"
            assert is_ours(*arguments)
    (start,) = service["ExecStart"]
    assert "--detach" not in start
    assert service["Type"] == ["exec"]


def test_systemd_waits_longer_than_a_stop_in_good_order_may_take() -> None:
    service = unit("Service")
    assert float(service["TimeoutStopSec"][0]) >= STOP_S + SLACK_S
    assert service.get("KillSignal", ["SIGTERM"]) == ["SIGTERM"]


def test_systemd_leaves_the_children_of_a_dead_supervisor_to_the_next() -> None:
    service = unit("Service")
    assert service["KillMode"] == ["process"]
    assert service["Restart"] == ["on-failure"]
    assert float(service["RestartSec"][0]) < DEFAULTS.node.orphan_grace_s / 2
    assert "PrivateTmp" not in service  # where the children's sockets are
    assert service["ReadWritePaths"] == ["/tmp"]  # noqa: S108


def test_systemd_does_not_try_again_what_no_restart_mends() -> None:
    (codes,) = unit("Service")["RestartPreventExitStatus"]
    assert list(map(int, codes.split())) == [EXIT_SETTINGS, EXIT_OWNED, EXIT_FENCED]


def test_one_worker_s_end_for_want_of_memory_does_not_end_the_node() -> None:
    assert unit("Service")["OOMPolicy"] == ["continue"]


def test_systemd_keeps_the_state_where_the_command_says() -> None:
    service = unit("Service")
    (start,) = service["ExecStart"]
    (folder,) = service["StateDirectory"]
    assert f"--state-dir /var/lib/{folder} " in start
    assert int(service["StateDirectoryMode"][0], 8) == 0o700


def test_systemd_itself_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:  # macOS; the other tests read the unit all the same
        return
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/bramley/bin/bramley", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.name)
def test_what_launchd_runs_is_a_command_of_ours_in_the_foreground(path: Path) -> None:
    program, *arguments = plist(path)["ProgramArguments"]
    assert Path(program).name == "bramley"
    assert is_ours(*arguments)
    assert "up" in arguments
    assert "--detach" not in arguments


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.name)
def test_launchd_waits_for_the_stop_and_restarts_failures_alone(path: Path) -> None:
    told = plist(path)
    assert told["ExitTimeOut"] >= STOP_S + SLACK_S
    assert told["RunAtLoad"] is True
    assert told["KeepAlive"] == {"SuccessfulExit": False}
    assert 10 <= told["ThrottleInterval"] < DEFAULTS.node.orphan_grace_s
    assert told["ProcessType"] == "Interactive"
    assert told["SoftResourceLimits"] == told["HardResourceLimits"] == {"NumberOfFiles": 65536}
    assert told["Umask"] == 0o077


def test_launchd_has_a_file_for_a_user_and_one_for_a_machine() -> None:
    agent, daemon = map(plist, PLISTS)
    assert "UserName" not in agent
    assert daemon.pop("UserName") == "NAME"
    assert agent == daemon
    for key in ("WorkingDirectory", "StandardOutPath", "StandardErrorPath"):
        assert agent[key].startswith("/Users/NAME")


def test_what_compose_runs_is_a_command_of_ours() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    told = dict(line.split(maxsplit=1) for line in lines if line.startswith(("ENTRY", "CMD")))
    program, *arguments = json.loads(told["ENTRYPOINT"]) + json.loads(told["CMD"])
    assert program == "bramley"
    assert is_ours(*arguments)
    *_, settings = arguments
    assert f"./cluster.toml:{settings}:ro" in services()["bramley"]["volumes"]


def test_compose_waits_longer_than_a_stop_in_good_order_may_take() -> None:
    period = services()["bramley"]["stop_grace_period"]
    assert float(period.removesuffix("s")) >= STOP_S + SLACK_S


def test_compose_opens_nothing_of_bramley_to_the_network() -> None:
    for name, service in services().items():
        if name != "bramley":
            assert service["network_mode"] == "service:bramley"
            assert "ports" not in service
    assert services()["bramley"]["ports"] == ["127.0.0.1:3000:3000"]
    assert "--web.listen-address=127.0.0.1:9090" in services()["prometheus"]["command"]


def test_compose_mounts_files_that_are_there() -> None:
    mounted = [volume for service in services().values() for volume in service["volumes"]]
    bound = [volume.split(":")[0] for volume in mounted if volume.startswith(".")]
    assert len(bound) == 4
    assert all((COMPOSE / path).exists() for path in bound)


def test_settings_prometheus_and_grafana_of_compose_agree_on_addresses(tmp_path: Path) -> None:
    settings = load(COMPOSE / "cluster.toml", [], tmp_path)
    scraped = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for address in (settings.router.http, settings.store.http):
        assert f'targets: ["{address}"]' in scraped
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/bramley.yml").read_text())
    assert source["datasources"][0]["url"] == "http://127.0.0.1:9090"
    boards = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/bramley.yml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    assert f"../grafana/dashboards:{folder}:ro" in services()["grafana"]["volumes"]


def test_commands_in_comments_are_ours_too() -> None:
    files = [UNIT, COMPOSE / "compose.yml"]
    found = [
        shlex.split(command)
        for file in files
        for command in re.findall(
            r"(?<=bramley )--state-dir [^`\n]*(?:\n +\w.*)?", comments(file.read_text())
        )
    ]
    assert found
    for arguments in found:
        assert is_ours(*arguments)
