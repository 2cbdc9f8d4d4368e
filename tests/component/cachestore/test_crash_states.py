"""Whenever the process or the power goes: nothing torn is listed, nothing promised is lost."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bramley.cachestore import recover
from bramley.cachestore.files import Files
from bramley.cachestore.folder import Folder
from bramley.cachestore.recover import Survey
from support.crash_states import Crashes, Wrong
from support.simulated_disk import SimulatedDisk
from support.simulated_nodes import File

STATES = 1_250  # of a seed
CONTROL_STATES = 600
SEEDS = 8
QUICK = 3  # of the seeds; the others are slow: `make test-all`
MEMORY = Path("/dev/shm")  # noqa: S108


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for SQLite's files, in RAM where the system offers it."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.parametrize(
    "seed",
    [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, SEEDS))],
)
def test_b026_b028_no_crash_tears_or_loses_anything(place: Path, seed: int) -> None:
    crashes = Crashes(SimulatedDisk, place, seed)
    crashes.run_until(STATES)
    print(f"seed {seed}: {dict(crashes.states)}")  # noqa: T201


def test_the_simulated_disk_stands_in_for_all_that_touches_a_file() -> None:
    calls = {name for name in vars(Files) if not name.startswith("_")}
    assert calls <= set(vars(SimulatedDisk))


class DropsDataSync(SimulatedDisk):
    """Does not sync what files hold."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""


class DropsNameSync(SimulatedDisk):
    """Does not sync names."""

    def fsync_dir(self, path: Path) -> None:
        """Do nothing."""


class SyncsTooLate(SimulatedDisk):
    """Syncs what a file holds when it has its name already."""

    _late: tuple[int, ...] = ()

    def fdatasync(self, fd: int) -> None:
        """Put it off, on a descriptor that stays open."""
        self._open[-1] = self._open[fd]
        self._late = (-1,)

    def fsync_dir(self, path: Path) -> None:
        """Do what was put off, too."""
        super().fsync_dir(path)
        for fd in self._late:
            super().fdatasync(fd)
        self._late = ()


class FlushesNothing(SimulatedDisk):
    """Leaves all in the drive's cache."""

    def full_sync(self, fd: int) -> None:
        """Do nothing."""


class OverwritesNames(SimulatedDisk):
    """Publishes by writing a second file under the name."""

    def link(self, source: Path, target: Path) -> None:
        """Copy it."""
        fd = self.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        content = self._node(source)
        assert isinstance(content, File)
        self.write(fd, bytes(content.content), 0)
        self.fdatasync(fd)
        self.close(fd)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (DropsDataSync, "torn"),
        (DropsNameSync, "lost|not told"),
        (SyncsTooLate, "torn"),
        (FlushesNothing, "lost|not told"),
        (OverwritesNames, "torn"),
    ],
)
def test_a_broken_protocol_is_noticed(place: Path, kind: type[SimulatedDisk], why: str) -> None:
    crashes = Crashes(kind, place, seed=0)
    with pytest.raises(Wrong, match=why):
        crashes.run_until(CONTROL_STATES)


put_in_order = recover.put_in_order


def removes_what_is_foreign(folder: Folder, found: Survey) -> None:
    put_in_order(folder, found)
    for path in found.foreign:
        if path.suffix == ".txt":
            folder.files.unlink(path)


def removes_the_newest(folder: Folder, found: Survey) -> None:
    put_in_order(folder, found)
    if len(found.entries) > 2:
        _, entry = found.entries.popitem()
        folder.files.unlink(folder.object(entry.object.root, entry.object.id))


def keeps_leftovers(folder: Folder, found: Survey) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (removes_what_is_foreign, "not ours"),
        (removes_the_newest, "lost|removed"),
        (keeps_leftovers, "leftovers"),
    ],
)
def test_a_broken_start_is_noticed(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Folder, Survey], None],
    why: str,
) -> None:
    monkeypatch.setattr(recover, "put_in_order", start)
    with pytest.raises(Wrong, match=why):
        Crashes(SimulatedDisk, place, seed=0).run_until(CONTROL_STATES)
