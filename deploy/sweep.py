"""Finds every process that was started for a state folder, by its command line.

Pidfiles tell of those that a supervisor lived long enough to write down; this finds the rest.
"""

from pathlib import Path

import psutil

from bramley.common.child import ChildContext, parse_context
from bramley.common.errors import SettingsError


def children_of(lease_file: Path) -> list[tuple[psutil.Process, ChildContext]]:
    """Find the living children of the folder with that lease; takes some 10 ms."""
    found: list[tuple[psutil.Process, ChildContext]] = []
    for process in psutil.process_iter():
        context = _child_context(process)
        if context is not None and context.lease_file == str(lease_file):
            found.append((process, context))
    return found


def _child_context(process: psutil.Process) -> ChildContext | None:
    """Read who a process was told it is; None if it is dead or no child of any supervisor."""
    try:
        command = process.cmdline()  # empty for a zombie
    except (psutil.Error, OSError):
        return None
    if "--child" not in command[:-1]:
        return None
    try:
        return parse_context(command[command.index("--child") + 1])
    except SettingsError:
        return None
