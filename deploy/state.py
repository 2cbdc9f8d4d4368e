"""The state folder: what a supervisor writes down for the one that comes after it.

Every file is replaced whole (written beside, then renamed), so that a reader never sees half
of one. ``epoch`` alone is flushed to the disk: numbers in it are never given out twice.
"""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from bramley.common.errors import SettingsError
from bramley.deploy.supervisor import Key

T = TypeVar("T")

ROLES = ("router", "worker", "store")
# What may lie in a state folder that no supervisor has owned yet.
_BEFORE_EPOCH = {"logs", "processes", "settings", "lock", "epoch.new", "models", "cache.noindex"}
_SOCKET_DIR_BYTES_MAX = 60  # a socket's whole path has about 100 bytes


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a child, as its pidfile tells.

    Attributes:
        spec: the settings it was wanted with.
        addresses: by kind; empty until the child is ready.
    """

    role: str
    name: str
    epoch: int
    pid: int
    spec: str
    addresses: dict[str, str] = {}

    @property
    def key(self) -> Key:
        """Whose incarnation it is."""
        return Key(self.role, self.name)


class WantedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that should run.

    Attributes:
        spec: the settings it is wanted with.
        is_pinned: as the router last had it.
    """

    spec: str
    is_pinned: bool = False


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """``node.json``: where the node is found.

    Attributes:
        run_dir: 0700 folder with a short path, for sockets.
        node: gRPC target of the NodeService.
        addresses: of the router, by kind; empty until it is ready for the first time.
        pid: of the supervisor.
        epoch: of the supervisor.
    """

    run_dir: str
    node: str
    addresses: dict[str, str] = {}
    pid: int
    epoch: int


class StateFolder:
    """Paths and files of one state folder; locks nothing (lease.py does).

    Raises:
        SettingsError: the folder holds something else.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path.resolve()
        names = {each.name for each in self.path.iterdir()}
        if "epoch" not in names and names - _BEFORE_EPOCH:
            raise SettingsError("--state-dir", f"{path} is not empty, and no state folder")
        self.path.chmod(0o700)
        for name in ("processes", "logs", "settings"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        self.lease = self.path / "lease.json"
        self.lock = self.path / "lock"
        self._node = self.path / "node.json"
        self._wanted = self.path / "wanted.json"
        self._epoch = self.path / "epoch"

    def log(self, key: Key) -> Path:
        """Where the output of a child goes."""
        return self.path / "logs" / f"{key.role}-{key.name}.log"

    @property
    def own_log(self) -> Path:
        """Where the output of a detached supervisor goes."""
        return self.path / "logs" / "supervisor.log"

    def write_settings(self, key: Key, settings_json: bytes) -> Path:
        """Write the settings of a child, and return where."""
        path = self._settings(key)
        replace_file(path, settings_json)
        return path

    def _settings(self, key: Key) -> Path:
        return self.path / "settings" / f"{key.role}-{key.name}.json"

    def read_settings(self, key: Key, kind: type[T]) -> T | None:
        """Read the settings that a child was last given; None if there are none of that kind."""
        return _read(self._settings(key), kind)

    def next_epoch(self, at_least: int = 0) -> int:
        """Give out a number above all that were given out; the caller holds the lock."""
        try:
            last = int(self._epoch.read_text())
        except (FileNotFoundError, ValueError):
            last = max((record.epoch for record in self.records()), default=0)
        epoch = max(last + 1, at_least)
        replace_file(self._epoch, str(epoch).encode(), flush=True)
        return epoch

    def records(self) -> Iterator[Record]:
        """Read the pidfiles; one that is not whole is left out."""
        for path in sorted((self.path / "processes").glob("*.json")):
            record = _read(path, Record)
            if record is not None:
                yield record

    def write_record(self, record: Record) -> None:
        """Write the pidfile of an incarnation over that of its predecessor."""
        replace_file(self._record(record.key), msgspec.json.encode(record))

    def remove_record(self, key: Key, epoch: int) -> None:
        """Remove the pidfile of an incarnation, unless it is another's by now."""
        record = _read(self._record(key), Record)
        if record is not None and record.epoch == epoch:
            self._record(key).unlink()

    def _record(self, key: Key) -> Path:
        return self.path / "processes" / f"{key.role}-{key.name}.json"

    def read_wanted(self) -> dict[str, WantedWorker]:
        """Read the wanted workers by name."""
        return _read(self._wanted, dict[str, WantedWorker]) or {}

    def write_wanted(self, workers: dict[str, WantedWorker]) -> None:
        """Write the wanted workers by name."""
        replace_file(self._wanted, msgspec.json.encode(workers))

    def read_node(self) -> NodeFile | None:
        """Read ``node.json``; None if there is none, or not a whole one."""
        return _read(self._node, NodeFile)

    def write_node(self, node: NodeFile) -> None:
        """Write ``node.json``."""
        replace_file(self._node, json.dumps(msgspec.to_builtins(node), indent=1).encode())

    def clear(self) -> None:
        """Remove what tells of a running node; logs and the count of epochs stay."""
        files = [self._node, self._wanted]
        for name in ("processes", "settings"):  # the folders stay: the next owner may be waiting
            for role in ROLES:
                files += (self.path / name).glob(f"{role}-*.json")
                files += (self.path / name).glob(f"{role}-*.json.new")
        files += [_beside(file) for file in (self._node, self._wanted, self.lease, self._epoch)]
        for path in files:
            path.unlink(missing_ok=True)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def replace_file(path: Path, content: bytes, *, flush: bool = False) -> None:
    """Write ``content`` to ``path`` so that readers see the old or the new, never a part."""
    beside = _beside(path)
    with beside.open("wb") as file:
        file.write(content)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def make_run_dir(previous: str | None) -> str:
    """Make the folder for sockets, or take the one of before if it is still there and ours."""
    if previous is not None and _is_ours(previous):
        return previous
    temporary = tempfile.gettempdir()
    if len(os.fsencode(temporary)) > _SOCKET_DIR_BYTES_MAX:
        temporary = "/tmp"  # noqa: S108 mkdtemp makes the folder itself with mode 0700
    return tempfile.mkdtemp(prefix="bramley-", dir=temporary)


def restore_run_dir(folder: str) -> None:
    """Make the folder for sockets again, where something has removed it.

    Raises:
        PermissionError: it is another's by now.
        OSError: it cannot be made.
    """
    with suppress(FileExistsError):
        Path(folder).mkdir(mode=0o700)
    if not _is_ours(folder):
        raise PermissionError(errno.EPERM, "it is not for this user alone", folder)


def _is_ours(folder: str) -> bool:
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(facts.st_mode)
        and facts.st_uid == os.getuid()
        and stat.S_IMODE(facts.st_mode) == 0o700
    )
