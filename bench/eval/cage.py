"""Runs a Python program that nobody has read: bounded, without a network, and nothing is left.

It runs in a session and a folder of its own, under the limits that inside.py sets. Afterwards its
process group is killed, and whatever else carries its mark, however it got away.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

TIMEOUT_S = 10.0
_INSIDE = Path(__file__).with_name("inside.py")
_MARK = "CAGE"
_SAID_MAX = 4000  # characters
_SWEEP_S = 5.0
_POLL_S = 0.005
_NOT_STARTED = "not started"  # inside.py's words


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a program may use at most; each process of it, but for the count of processes."""

    cpu_s: int = 5
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    files: int = 32
    processes: int = 32


@dataclass(frozen=True, slots=True)
class Caged:
    """How a program ended.

    Attributes:
        code: its exit code; 128 and the number of the signal that ended it.
        said: the end of what it printed, errors included.
        ended: why it was ended; empty if it ended by itself.
        isolation: what it was kept apart by.
    """

    code: int
    said: str
    ended: str
    isolation: str


class CannotCage(OSError):
    """No program can be run under limits here."""


def run_caged(program: str, *, timeout_s: float = TIMEOUT_S, limits: Limits | None = None) -> Caged:
    """Run a program to its end, or until it is ended.

    Args:
        program: Python; it is run with ``-I -S``: no site-packages, no environment.
        timeout_s: for all of it, by the clock.
        limits: see there.

    Returns:
        How it ended.

    Raises:
        CannotCage: its limits cannot be set, or something of it would not end.
    """
    limits = limits or Limits()
    # Resolved, so that a program which is told its folder finds it.
    folder = Path(tempfile.mkdtemp(prefix="bramley-cage-")).resolve()
    mark = secrets.token_hex(16)
    try:
        home = folder / "home"
        home.mkdir(mode=0o700)
        (home / "program.py").write_text(program, encoding="utf-8", errors="replace")
        command = [sys.executable, "-I", "-S", str(_INSIDE), msgspec.json.encode(limits).decode()]
        with (folder / "said").open("wb") as said, (folder / "how").open("wb") as how:
            process = subprocess.Popen(  # noqa: S603
                [*command, str(how.fileno())],
                cwd=home,
                env={_MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                pass_fds=(how.fileno(),),
            )
        code, ended = _wait(process, mark, timeout_s)
        isolation = (folder / "how").read_text()
        if _NOT_STARTED in isolation:
            raise CannotCage(f"a program cannot be caged here: {isolation}")
        return Caged(code, _tail(folder / "said"), ended or _told(code), isolation)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: "subprocess.Popen[bytes]", mark: str, timeout_s: float) -> tuple[int, str]:
    """Wait for the end, or make it: of the whole group, and of what left the group."""
    give_up_s, ended = time.monotonic() + timeout_s, ""
    try:
        while not _has_ended(process.pid):
            if time.monotonic() > give_up_s:
                ended = f"ended after {timeout_s:g} s"
                break
            time.sleep(_POLL_S)
    finally:
        # Its number cannot be another's before it is waited for.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sweep(mark)
    return 128 + signal.SIGKILL if ended else process.returncode, ended


def _has_ended(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def sweep(mark: str) -> None:
    """Kill everything that carries a mark, until nothing does.

    Raises:
        CannotCage: something is left.
    """
    give_up_s = time.monotonic() + _SWEEP_S
    while found := list(marked(mark)):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if time.monotonic() > give_up_s:
            raise CannotCage(f"left of a caged program: {[process.pid for process in found]}")


def marked(mark: str) -> list[psutil.Process]:
    """Find what carries a mark in the environment that it was started with."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_marked = process.environ().get(_MARK) == mark
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _told(code: int) -> str:
    if code == 128 + signal.SIGXCPU or code == 128 + signal.SIGKILL:
        return "ended for its use of the processor or of memory"
    return ""


def _tail(file: Path) -> str:
    with file.open("rb") as said:
        said.seek(0, 2)
        said.seek(max(said.tell() - 4 * _SAID_MAX, 0))
        return said.read().decode(errors="replace")[-_SAID_MAX:]
