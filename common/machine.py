"""How much memory this machine gives us: its RAM, or what a control group of Linux leaves of it."""

from collections.abc import Iterator
from pathlib import Path

import psutil


def ram_bytes() -> int:
    """RAM of the machine."""
    return psutil.virtual_memory().total


def budget_bytes() -> int:
    """What models and cache store may take together, where no settings say so."""
    return usable_bytes() * 3 // 4


def usable_bytes(root: Path = Path("/")) -> int:
    """RAM that this process and its children may use; ``root`` has ``proc`` and ``sys``."""
    return min([ram_bytes(), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Limits of the control groups that this process is in, each within the one above."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.strip("/")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        for each in (group, *group.parents):
            if each.is_relative_to(top):
                yield from _number(each / name)


def _number(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # or "max"
        yield int(text)
