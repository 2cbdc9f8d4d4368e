"""A disk in memory of which copies can be taken as if its process, or its power, had gone.

A power cut loses a random part of what was not synced: pages of 4 KiB of a file, its size and
time, and the names in each folder. Only SQLite's files are real, in the folder ``mount``.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

from bramley.cachestore.files import Files
from support.simulated_nodes import Copy, Directory, File, Frozen, Node, contents, nodes, stat_of

_FIRST_FD = 1 << 20  # real descriptors are smaller
_TICK_NS, _CALLS_A_TICK = 4_000_000, 8  # the clock of a file system is coarse


class Killed(BaseException):
    """The process is dead: no call does anything any more."""


class SimulatedDisk(Files):
    """Files in memory.

    Args:
        mount: an empty real folder; the disk's root, under which all paths are.

    Attributes:
        watch: told the name of each call that changed something, once it has; it may raise Killed.
        calls: made so far.
        is_dead: whether every call raises Killed.
        has_drive_cache: whether ``after_power_cut`` can lose what was synced; a copy's cannot.
    """

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.watch: Callable[[str], None] = lambda _: None
        self.calls = 0
        self.is_dead = False
        self.has_drive_cache = True
        self.root = Directory(1)
        self._open: dict[int, File] = {}
        self._fds = itertools.count(_FIRST_FD)
        self._cached: list[Directory] = []  # before each sync that may be in the drive's cache
        self._skip = len(str(mount)) + 1

    # What is left of it

    def after_kill(self, mount: Path) -> "SimulatedDisk":
        """Copy the disk as the next process finds it."""
        return _disk(Copy(None).directory(self.root), mount)

    def after_power_cut(
        self, mount: Path, chance: random.Random, *, drive_cache: bool = False
    ) -> "SimulatedDisk":
        """Copy the disk as the next process finds it when the power has gone.

        Args:
            mount: of the copy.
            chance: what of the unsynced is left.
            drive_cache: a sync is a barrier and no more, until ``full_sync``, as on macOS.

        Returns:
            The copy.
        """
        images = [*self._cached, self.root] if drive_cache else [self.root]
        return _disk(Copy(chance).directory(chance.choice(images)), mount)

    def restart(self) -> None:
        """Forget the dead process; what it did not sync is not lost, and not synced."""
        self.is_dead = False
        self._open.clear()
        for node in nodes(self.root):
            if isinstance(node, File):
                node.owner = None

    def content(self) -> dict[str, bytes]:
        """All files by their path from the root."""
        return dict(contents(self.root, ""))

    def plant(self, path: str, content: bytes) -> None:
        """Put a synced file there, as another program may have."""
        folder = self.root
        for name in path.split("/")[:-1]:
            child = folder.names.setdefault(name, Directory(self._ino()))
            folder.synced[name] = child
            assert isinstance(child, Directory)
            folder = child
        planted = File(self._ino(), self._now_ns(), content, content)
        name = path.rsplit("/", maxsplit=1)[-1]
        folder.names[name] = folder.synced[name] = planted

    def paths(self) -> dict[str, str]:
        """Where each object's file is, by id."""
        names = (path for path in self.content() if path.endswith(".kvx"))
        return {path.rsplit("/", 1)[-1].removesuffix(".kvx"): path for path in names}

    def change(self, path: str, content: bytes) -> None:
        """Put other content into a file, whose time and number stay: as a bad drive does."""
        file = self._node(self.mount / path)
        assert isinstance(file, File)
        file.content = file.synced = content

    def write_back(self) -> None:
        """Sync everything, as the system does by itself now and then."""
        for node in nodes(self.root):
            node.sync()

    def _alive(self) -> None:
        if self.is_dead:
            raise Killed

    def _did(self, call: str) -> None:
        self.calls += 1
        self.watch(call)

    def _now_ns(self) -> int:
        return 10**18 + self.calls // _CALLS_A_TICK * _TICK_NS

    def _ino(self) -> int:
        """Find the smallest number that is free: file systems give them out again."""
        taken = {node.ino for node in nodes(self.root)}
        return next(number for number in itertools.count(1) if number not in taken)

    def _barrier(self) -> None:
        if self.has_drive_cache:
            self._cached.append(Frozen().directory(self.root))

    # Paths

    def _is_real(self, path: Path) -> bool:
        return path.name.startswith("index.db") and path.parent == self.mount

    def _node(self, path: Path) -> Node:
        node: Node = self.root
        for name in filter(None, str(path)[self._skip :].split("/")):
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            if name not in node.names:
                raise _error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def _folder(self, path: Path) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    # Calls

    def open(self, path: Path, flags: int) -> int:
        """Open a file."""
        self._alive()
        if self._is_real(path):
            return super().open(path, flags)
        folder = self._folder(path.parent)
        file = folder.names.get(path.name)
        if isinstance(file, Directory):
            raise _error(errno.EISDIR, path)
        if file is not None and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        is_new = file is None
        if file is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            file = File(self._ino(), self._now_ns())
            folder.change(path.name, file)
        fd = next(self._fds)
        self._open[fd] = file
        if is_new:
            self._did("open")
        return fd

    def open_unnamed(self, folder: Path) -> int:
        """Have no such files."""
        self._alive()
        raise _error(errno.EOPNOTSUPP, folder)

    def name(self, fd: int, target: Path) -> None:
        """Have none to name."""
        self._alive()
        raise _error(errno.EOPNOTSUPP, target)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        if fd < _FIRST_FD:
            super().close(fd)
            return
        file = self._open.pop(fd)  # the system does it for the dead too
        if file.owner == fd:
            file.owner = None

    def lock(self, fd: int) -> None:
        """Take the file until it is closed."""
        self._alive()
        if self._open[fd].owner is not None:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self._open[fd].owner = fd

    def preallocate(self, fd: int, size: int) -> None:
        """Give the file its size."""
        self._alive()
        self._open[fd].resize(size, self._now_ns())
        self._did("preallocate")

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write it in two halves."""
        half = len(data) // 2
        for start, end in ((0, half), (half, len(data))):
            self._alive()
            file, first, last = self._open[fd], offset + start, offset + end
            if len(file.content) < last:
                file.resize(last, self._now_ns())
            file.change(first, last, self._now_ns())[first:last] = data[start:end]
            self._did("write")

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        """Read."""
        self._alive()
        data = self._open[fd].content[offset : offset + len(target)]
        target[: len(data)] = data
        return len(data)

    def fdatasync(self, fd: int) -> None:
        """Keep the file's content."""
        self._alive()
        self._barrier()
        self._open[fd].sync()
        self._did("fdatasync")

    def full_sync(self, fd: int) -> None:
        """Keep the file's content, and all that was synced before."""
        self._alive()
        self._open[fd].sync()
        self._cached.clear()
        self._did("full_sync")

    def fsync_dir(self, path: Path) -> None:
        """Keep a folder's names."""
        self._alive()
        self._barrier()
        self._folder(path).sync()
        self._did("fsync_dir")

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        self._alive()
        node, folder = self._node(source), self._folder(target.parent)
        if target.name in folder.names:
            raise _error(errno.EEXIST, target)
        folder.change(target.name, node)
        self._did("link")

    def rename(self, source: Path, target: Path) -> None:
        """Move a file; after a power cut it may have both names or neither."""
        self._alive()
        node, folder = self._node(source), self._folder(target.parent)
        if isinstance(folder.names.get(target.name), Directory):
            raise _error(errno.EISDIR, target)
        folder.change(target.name, node)
        self._folder(source.parent).change(source.name, None)
        self._did("rename")

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        self._alive()
        if self._is_real(path):
            super().unlink(path)
            return
        folder = self._folder(path.parent)
        if isinstance(folder.names.get(path.name), Directory):
            raise _error(errno.EISDIR, path)
        if path.name in folder.names:
            folder.change(path.name, None)
            self._did("unlink")

    def mkdir(self, path: Path) -> None:
        """Make a folder."""
        self._alive()
        folder = self._folder(path.parent)
        if path.name in folder.names:
            raise _error(errno.EEXIST, path)
        folder.change(path.name, Directory(self._ino()))
        self._did("mkdir")

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        self._alive()
        if self._folder(path).names:
            raise _error(errno.ENOTEMPTY, path)
        self._folder(path.parent).change(path.name, None)
        self._did("rmdir")

    def restrict(self, path: Path) -> None:
        """Do nothing: nobody else looks."""
        self._alive()

    def room(self, path: Path) -> tuple[int, int]:
        """As much as anybody could want."""
        self._alive()
        return 1 << 40, 1 << 40

    def list(self, path: Path) -> list[str]:
        """Names in a folder."""
        self._alive()
        names = set(self._folder(path).names)
        if path == self.mount:
            names.update(os.listdir(path))
        return sorted(names)

    def stat(self, path: Path) -> os.stat_result:
        """What a name stands for."""
        self._alive()
        return super().stat(path) if self._is_real(path) else stat_of(self._node(path))

    def fstat(self, fd: int) -> os.stat_result:
        """What an open file is."""
        self._alive()
        return super().fstat(fd) if fd < _FIRST_FD else stat_of(self._open[fd])


def _disk(root: Directory, mount: Path) -> SimulatedDisk:
    disk = SimulatedDisk(mount)
    disk.root = root
    disk.has_drive_cache = False
    return disk


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
