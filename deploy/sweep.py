"""Finds every process that was started for a state folder, by its command line.

Pidfiles tell of those that a supervisor lived long enough to write down; this finds the rest.
"""

import os
from pathlib import Path

import psutil

from bramley.common.child import ChildContext, parse_context
from bramley.common.errors import SettingsError


def children_of(lease_file: Path) -> list[tuple[psutil.Process, ChildContext]]:
    """Find the living children of the folder with that lease; takes some 10 ms.

    Returns:
        Leaders of a session. What a wrapping command runs has the same command line and is no
        child itself, unless its wrapper is gone.
    """
    found: dict[int, tuple[psutil.Process, ChildContext]] = {}
    for process in psutil.process_iter():
        context = _child_context(process)
        if context is not None and context.lease_file == str(lease_file):
            found[process.pid] = (process, context)
    return [pair for pid, pair in found.items() if (of := _session(pid)) == pid or of not in found]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has just ended
        return pid


def _child_context(process: psutil.Process) -> ChildContext | None:
    """Read who a process was told it is; None if it is dead or no child of ours."""
    try:
        if process.uids().effective != os.geteuid():  # anybody may name our lease
            return None
        command = process.cmdline()  # empty for a zombie
    except (psutil.Error, OSError):
        return None
    if "--child" not in command[:-1]:
        return None
    try:
        return parse_context(command[command.index("--child") + 1])
    except SettingsError:
        return None
