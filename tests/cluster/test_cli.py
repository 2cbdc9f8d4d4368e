"""The command line against real processes: supervisor, router and a worker without a model."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

FAKE_WORKER = Path(__file__).resolve().parents[1] / "support" / "fake_worker.py"
MODEL = "smollm2"  # the embedded one's name; the fake worker never opens it
ANYWHERE = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")


class Shell:
    """Runs ``bramley`` on a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self._script = folder / "script.json"

    def command(self, *arguments: str) -> list[str]:
        """Make a whole command line."""
        bramley = [sys.executable, "-m", "bramley.client", "--state-dir", str(self.state_dir)]
        return [*bramley, *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments), check=False, capture_output=True, text=True, timeout=60
        )

    def up_arguments(self, **script: object) -> list[str]:
        """Make arguments of ``up`` whose worker plays ``script``."""
        self._script.write_bytes(msgspec.json.encode(script))
        worker = [sys.executable, str(FAKE_WORKER), "--script", str(self._script)]
        return ["up", *ANYWHERE, "--set", f"node.worker_command={json.dumps(worker)}"]

    def up(self, **script: object) -> "subprocess.CompletedProcess[str]":
        """Start a cluster beside."""
        return self.run(*self.up_arguments(**script), "--detach")

    def status(self) -> dict[str, Any]:
        """Ask what runs."""
        return json.loads(self.run("status", "--json").stdout)

    def pids(self) -> dict[str, int]:
        """Ask for the pid of each role."""
        return {process["role"]: process["pid"] for process in self.status()["processes"]}


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    if shell.status()["state"] != "stopped":
        assert shell.run("down").returncode == 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shell]:
    """A cluster that runs, for tests that leave it so."""
    shell = Shell(tmp_path_factory.mktemp("running"))
    assert shell.up().returncode == 0
    yield shell
    assert shell.run("down").returncode == 0


def wait_until(claim: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_up_serves_and_down_leaves_nothing(shell: Shell) -> None:
    up = shell.up(load_s=0.5)
    assert (up.returncode, up.stderr) == (0, "")
    status = shell.status()
    assert status["state"] == "running"
    assert [model["state"] for model in status["models"]] == ["ready"]  # up has waited
    addresses = status["addresses"]
    assert all(f"{kind:<7} {addresses[kind]}\n" in up.stdout for kind in ("grpc", "http"))
    pids = shell.pids()
    assert pids.keys() == {"supervisor", "store", "router", "worker"}

    answer = shell.run("generate", MODEL, "hi", "--max-tokens", "3")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "0 1 2 \n", "")

    down = shell.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert all(map(is_gone, pids.values()))
    assert not Path(addresses["node"].removeprefix("unix:")).parent.exists()
    assert shell.status()["state"] == "stopped"


def test_up_in_the_foreground_is_the_supervisor(shell: Shell) -> None:
    command = shell.command(*shell.up_arguments())
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            wait_until(lambda: shell.pids().get("supervisor") == process.pid)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("bramley: serving gRPC at 127.0.0.1:")
            assert process.stdout.readline() == f"bramley: model {MODEL} is ready\n"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_wrong_setting_is_told_with_its_key(shell: Shell) -> None:
    up = shell.run("up", "--detach", *ANYWHERE, "--set", "router.classes.bulk.queue_max=0")
    assert up.returncode == 2
    (line,) = up.stderr.splitlines()
    assert line.startswith("bramley: router.classes.bulk.queue_max: ")


def test_second_cluster_in_a_folder_is_refused(running: Shell) -> None:
    second = running.up()
    assert second.returncode == 3
    (line,) = second.stderr.splitlines()
    assert "belongs to a running supervisor" in line
    assert "its log" not in line
    assert running.status()["state"] == "running"


def test_what_a_dead_supervisor_left_is_shown_and_ended(shell: Shell) -> None:
    assert shell.up().returncode == 0
    pids = shell.pids()
    run_dir = Path(shell.status()["addresses"]["node"].removeprefix("unix:")).parent
    os.kill(pids.pop("supervisor"), signal.SIGKILL)
    status = shell.status()
    assert status["state"] == "orphaned"
    assert {each["role"]: each["pid"] for each in status["processes"]} == pids
    assert {each["state"] for each in status["processes"]} == {"orphaned"}
    assert [model["state"] for model in status["models"]] == ["ready"]
    shown = shell.run("status")
    assert shown.returncode == 0
    assert "no supervisor" in shown.stdout
    down = shell.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert all(map(is_gone, pids.values()))
    assert not run_dir.exists()
    assert shell.status()["state"] == "stopped"


def test_router_that_does_not_start_ends_up(shell: Shell) -> None:
    up = shell.run(*shell.up_arguments(), "--detach", "--set", 'node.router_command=["/bin/false"]')
    assert up.returncode == 1
    (line,) = up.stderr.splitlines()
    assert line.startswith("bramley: the router does not start: exit code 1 (")


def test_model_that_cannot_start_is_told_with_its_reason(shell: Shell) -> None:
    up = shell.up(exit_code=3)
    assert up.returncode == 1
    (line,) = up.stderr.splitlines()
    assert line.startswith(f"bramley: model {MODEL} is failed: exit code 3")
    assert shell.status()["state"] == "running"


def test_status_shows_a_restarted_worker(running: Shell) -> None:
    before = running.pids()["worker"]
    os.kill(before, signal.SIGKILL)

    def worker() -> dict[str, Any]:
        return next(each for each in running.status()["processes"] if each["role"] == "worker")

    wait_until(lambda: worker()["state"] == "running" and worker()["pid"] != before)
    assert (worker()["restarts"], worker()["last_exit"]) == (1, "signal SIGKILL")


def test_demo_shows_its_figures_and_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    arguments = shell.up_arguments(interval_s=0.01)
    given = arguments[arguments.index("--set") :]
    ended = subprocess.run(
        shell.command("demo", *given),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "UNAVAILABLE WORKER_LOST" in ended.stdout
    phases = ("cold", "warm", "worker killed", "store killed", "all stopped", "four at once")
    lines = ended.stdout.splitlines()
    assert all(any(line.startswith(phase) for line in lines) for phase in phases)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_demo_fails_if_an_answer_is_another_one(shell: Shell) -> None:
    demo = (
        "import itertools, sys; from bramley.bench import demo;"
        "counts = itertools.count(8);"
        "demo.MAX_TOKENS = type('N', (), {'__index__': lambda _: next(counts)})();"
        "sys.exit(demo.main())"
    )
    given = shell.up_arguments()
    command = [sys.executable, "-c", demo, *given[given.index("--set") :]]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "demo: warm: the answer is another one than at first\n"


def test_the_cache_is_shown_flushed_and_verified_running_and_stopped(shell: Shell) -> None:
    assert shell.up().returncode == 0
    stats = json.loads(shell.run("cache", "stats", "--json").stdout)
    assert stats["gauges"]["objects"] == 0
    assert shell.run("cache", "stats").returncode == 0
    flushed = shell.run("cache", "flush")
    assert (flushed.returncode, flushed.stderr) == (0, "")
    assert shell.run("cache", "verify").stdout == "0 objects are whole\n"
    assert shell.run("down").returncode == 0
    assert (shell.state_dir / "cache.noindex").is_dir()
    assert shell.run("cache", "verify").returncode == 0
