"""Values read of files, and read again once one of the files has changed."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from bramley.common.errors import SettingsError
from bramley.common.logs import facts

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that follows its files; threads may share it.

    Args:
        files: that it is read of.
        read: reads it; raises SettingsError where a file is not right.

    Raises:
        SettingsError: a file is not right. Of later versions it is logged, once for each, and
            the value stays as it was.
    """

    def __init__(self, files: Sequence[str], read: Callable[[], T]) -> None:
        self._files = [Path(file) for file in files]
        self._read = read
        self._lock = threading.Lock()
        self._marks = self._look()
        self._value = read()

    def now(self) -> T:
        """Answer with the value, after a look at the files."""
        with self._lock:
            marks = self._look()  # before reading: what changes meanwhile is read next time
            if marks != self._marks:
                self._marks = marks
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._read()
        except SettingsError as error:
            log.error("a changed file is not used: %s", error)  # noqa: TRY400
        else:
            log.info("read again", extra=facts(files=",".join(map(str, self._files))))

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(file) for file in self._files]


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    # The time of change of the file's mode as well: one that was open to others may be right now.
    return found.st_ino, found.st_size, found.st_ctime_ns
