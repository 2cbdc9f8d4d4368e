"""A file system that counts its calls, and fails, waits or forgets to sync when told to."""

import os
import threading
from functools import partial
from typing import Any

from bramley.cachestore.files import Files

CALLS = {name for name in vars(Files) if not name.startswith("_")}


class FailingFiles(Files):
    """Does as Files does, but for the calls that are told to fail.

    Attributes:
        made: names of the calls, in order.
    """

    def __init__(self) -> None:
        self.made: list[str] = []
        self._code = 0
        self._numbers: set[int] = set()
        self._names: set[str] = set()

    def fail_number(self, number: int, code: int) -> None:
        """Let the call with this place in ``made``, from now on, fail."""
        self.made.clear()
        self._numbers, self._code = {number}, code

    def fail_all(self, *names: str, code: int) -> None:
        """Let these calls fail until further notice."""
        self._names, self._code = set(names), code

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._numbers, self._names = set(), set()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return partial(self._call, name, value) if name in CALLS else value

    def _call(self, name: str, call: Any, *arguments: Any) -> Any:
        number = len(self.made)
        self.made.append(name)
        if number in self._numbers or name in self._names:
            raise OSError(self._code, os.strerror(self._code))
        return call(*arguments)


class UnsyncedFiles(Files):
    """Leaves out the syncs: for tests of many files that need no crash."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""

    def fsync_dir(self, path: object) -> None:
        """Do nothing."""


class HeldFiles(Files):
    """Stops in the middle of each payload until ``go_on`` is set.

    Attributes:
        is_held: set when half a payload is written.
    """

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.go_on = threading.Event()

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write a half, wait, and write the rest."""
        half = len(data) // 2
        super().write(fd, data[:half], offset)
        if isinstance(data, memoryview):
            self.is_held.set()
            assert self.go_on.wait(30)
        super().write(fd, data[half:], offset + half)
