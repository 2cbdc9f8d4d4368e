"""A cluster in a state folder of its own, driven by the command line, that leaves nothing."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bramley.client.commands.down import is_alive

ANYWHERE = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
END_WITHIN_S = 30.0
_POLL_S = 0.1


class Failed(Exception):
    """What was to be shown did not happen."""


class Cluster:
    """A state folder, and what runs in it.

    Args:
        state_dir: made by ``up``.
        arguments: of ``bramley up``.
    """

    def __init__(self, state_dir: Path, arguments: Sequence[str]) -> None:
        self._state_dir = state_dir
        self._arguments = arguments
        self._pids: set[int] = set()
        self._run_dirs: set[Path] = set()

    def command(self, *arguments: str, check: bool = True) -> str:
        """Run ``bramley`` on the state folder, and return what it printed."""
        command = [sys.executable, "-P", "-m", "bramley.client"]
        command += ["--state-dir", str(self._state_dir), *arguments]
        ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603
        if check and ended.returncode:
            raise Failed(f"`bramley {arguments[0]}` ended with exit code {ended.returncode}")
        return ended.stdout

    def up(self) -> None:
        """Start it, and wait until every model is ready."""
        self.command("up", "--detach", *ANYWHERE, *self._arguments)

    def status(self) -> dict[str, Any]:
        """Ask what runs; its processes and folders are remembered for ``down``."""
        status = json.loads(self.command("status", "--json"))
        self._pids |= {process["pid"] for process in status["processes"] if process["pid"]}
        if (node := status["addresses"]["node"]) is not None:
            self._run_dirs.add(Path(node.removeprefix("unix:")).parent)
        return status

    def pids(self) -> set[int]:
        """What runs now."""
        return {each["pid"] for each in self.status()["processes"] if each["state"] == "running"}

    def process(self, role: str) -> dict[str, Any] | None:
        """Find the process of that role, if one runs; of several workers, the first."""
        running = (each for each in self.status()["processes"] if each["state"] == "running")
        return next((each for each in running if each["role"] == role), None)

    def until_replaced(self, before: dict[str, Any], timeout_s: float) -> None:
        """Wait until a later incarnation of a process runs.

        Raises:
            Failed: none does within ``timeout_s``.
        """
        give_up_s = time.monotonic() + timeout_s
        while (now := self.process(before["role"])) is None or now["epoch"] <= before["epoch"]:
            if time.monotonic() > give_up_s:
                raise Failed(f"the {before['role']} did not come back")
            time.sleep(_POLL_S)

    def down(self) -> list[str]:
        """End everything, whatever state it is in.

        Returns:
            What was left over by ``bramley down``.
        """
        try:
            if self.status()["state"] != "stopped":
                self.command("down", check=False)
        finally:
            end_all_of(self._state_dir)
        left = [f"process {pid}" for pid in sorted(self._pids) if is_alive(pid)]
        left += [f"folder {folder}" for folder in self._run_dirs if folder.exists()]
        return left


def end_all_of(state_dir: Path) -> None:
    """End whatever was started for a state folder, and that no command knows of.

    An ``up`` that was interrupted may have started a supervisor which has told nobody yet.
    """
    found = list(_told_of(state_dir))
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, END_WITHIN_S)
    # What these had begun meanwhile as well.
    for process in {*alive, *_told_of(state_dir)}:
        with suppress(psutil.Error):
            process.kill()


def _told_of(state_dir: Path) -> Iterator[psutil.Process]:
    """Find processes whose command line names a folder, or something in it.

    Yields:
        Each.
    """
    begins = tuple(f"{folder}/" for folder in (state_dir, state_dir.resolve()))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_told = any(f"{word}/".startswith(begins) for word in process.cmdline())
            if is_told and process.pid != os.getpid():
                yield process


@contextmanager
def running(arguments: Sequence[str]) -> Generator[Cluster]:
    """Run a cluster while the block runs.

    Yields:
        The cluster, ready.

    Raises:
        Failed: something of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="bramley-demo-") as folder:
        cluster = Cluster(Path(folder) / "state", arguments)
        try:
            cluster.up()
            yield cluster
        finally:
            left = cluster.down()
        if left:
            raise Failed(f"left over: {', '.join(left)}")
