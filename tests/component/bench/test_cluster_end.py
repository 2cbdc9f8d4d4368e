"""Nothing is left of a cluster, however early its start was interrupted."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from bramley.bench.cluster import Cluster

WAITS = "import time; time.sleep(60)"


@pytest.fixture
def started() -> Generator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended in any case."""
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()


def runs(process: psutil.Process) -> bool:
    """Whether a process lives; who inherited it may not have looked yet that it ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def waiting(*words: str) -> "subprocess.Popen[bytes]":
    """A process that waits, whatever its command line says."""
    return subprocess.Popen([sys.executable, "-P", "-c", WAITS, *words])


def test_who_was_told_of_the_state_folder_and_has_told_nobody_is_ended(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    state = tmp_path / "a state"
    state.mkdir()
    started += [
        waiting("--state-dir", str(state)),
        waiting(str(state / "lease.json")),
        waiting(str(tmp_path / "a state of another")),
    ]
    assert Cluster(state, []).down() == []
    assert [process.poll() is None for process in started] == [False, False, True]


def test_a_start_that_is_interrupted_at_once_leaves_no_supervisor(tmp_path: Path) -> None:
    state = tmp_path / "state"
    cluster = Cluster(state, [str(tmp_path / "cluster.toml")])
    (tmp_path / "cluster.toml").write_text("")
    command = [sys.executable, "-P", "-m", "bramley.client", "--state-dir", str(state)]
    command += ["up", "--detach", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as up:
        try:
            while not (begun := psutil.Process(up.pid).children()):
                assert up.poll() is None
        finally:
            up.kill()
    assert cluster.down() == []
    assert [process for process in begun if runs(process)] == []
