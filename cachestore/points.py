"""Named points of the write path where a test has the store die, as if killed from outside."""

import os
import signal
from pathlib import Path

from bramley.cachestore.files import Files


class Points:
    """Counts how often each point is reached.

    Args:
        die_at: name of the deadly point, or ``name:n`` for its n-th time; empty for none.

    Attributes:
        is_committing: whether an object is being written; nothing else passes a file's points.
    """

    def __init__(self, die_at: str = "") -> None:
        self._name, _, count = die_at.partition(":")
        self._left = int(count or 1)
        self.is_committing = False

    def reach(self, name: str) -> None:
        """Pass a point, or die there."""
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingFiles(Files):
    """Files with a point after each kind of call of an object's commit."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def _reach(self, name: str) -> None:
        if self._points.is_committing:
            self._points.reach(name)

    def preallocate(self, fd: int, size: int) -> None:
        """Do so, then pass ``files.preallocate``."""
        super().preallocate(fd, size)
        self._reach("files.preallocate")

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Do so, then pass ``files.write``."""
        super().write(fd, data, offset)
        self._reach("files.write")

    def fdatasync(self, fd: int) -> None:
        """Do so, then pass ``files.fdatasync``."""
        super().fdatasync(fd)
        self._reach("files.fdatasync")

    def link(self, source: Path, target: Path) -> None:
        """Do so, then pass ``files.link``."""
        super().link(source, target)
        self._reach("files.link")
