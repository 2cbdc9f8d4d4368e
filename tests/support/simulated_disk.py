"""A disk in memory of which copies can be taken as if its process, or its power, had gone.

A power cut loses a random part of what was not synced: pages of 4 KiB of a file, its size and
time, and the names in each folder. Only SQLite's files are real, in the folder ``mount``.
"""

import errno
import itertools
import os
import random
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from bramley.cachestore.files import Files

PAGE = 4096
_FIRST_FD = 1 << 20  # real descriptors are smaller
_TICK_NS, _CALLS_A_TICK = 4_000_000, 8  # the clock of a file system is coarse


class Killed(BaseException):
    """The process is dead: no call does anything any more."""


@dataclass(eq=False)
class File:
    """A file: as it is, and as it was when it was last synced."""

    ino: int
    mtime_ns: int
    content: bytes | bytearray = b""  # bytes while it is as it was synced
    synced: bytes = b""
    synced_mtime_ns: int = 0
    dirty: set[int] = field(default_factory=set[int])  # pages
    owner: int | None = None  # the descriptor that locked it

    def resize(self, size: int, mtime_ns: int) -> None:
        """Cut it, or add zeros."""
        before = len(self.content)
        content = self.change(min(before, size), max(before, size), mtime_ns)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def change(self, start: int, end: int, mtime_ns: int) -> bytearray:
        """Note what a call changes, and give it the bytes."""
        self.dirty.update(range(start // PAGE, -(-end // PAGE)))
        self.mtime_ns = mtime_ns
        if isinstance(self.content, bytes):
            self.content = bytearray(self.content)
        return self.content

    def sync(self) -> None:
        """Keep what is there; its time is no part of that."""
        self.content = self.synced = bytes(self.content)
        self.dirty.clear()


@dataclass(eq=False)
class Directory:
    """A folder: its names, those that were there when it was last synced, and changes since."""

    ino: int
    names: "dict[str, Node]" = field(default_factory=dict[str, "Node"])
    synced: "dict[str, Node]" = field(default_factory=dict[str, "Node"])
    pending: "list[tuple[str, Node | None]]" = field(
        default_factory=list[tuple[str, "Node | None"]]
    )

    def change(self, name: str, node: "Node | None") -> None:
        """Give a name, or take it away."""
        self.pending.append((name, node))
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node

    def sync(self) -> None:
        """Keep the names that are there."""
        self.synced = dict(self.names)
        self.pending.clear()
        for node in self.names.values():
            if isinstance(node, File):
                node.synced_mtime_ns = node.mtime_ns


Node: TypeAlias = File | Directory
_Kept = TypeVar("_Kept", File, Directory)


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
        return _Copy(None).disk(self.root, mount)

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
        return _Copy(chance).disk(chance.choice(images), mount)

    def restart(self) -> None:
        """Forget the dead process; what it did not sync is not lost, and not synced."""
        self.is_dead = False
        self._open.clear()
        for node in _nodes(self.root):
            if isinstance(node, File):
                node.owner = None

    def content(self) -> dict[str, bytes]:
        """All files by their path from the root."""
        return dict(_contents(self.root, ""))

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
        for node in _nodes(self.root):
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
        taken = {node.ino for node in _nodes(self.root)}
        return next(number for number in itertools.count(1) if number not in taken)

    def _barrier(self) -> None:
        if self.has_drive_cache:
            self._cached.append(_Frozen().directory(self.root))

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
        return super().stat(path) if self._is_real(path) else _stat(self._node(path))

    def fstat(self, fd: int) -> os.stat_result:
        """What an open file is."""
        self._alive()
        return super().fstat(fd) if fd < _FIRST_FD else _stat(self._open[fd])


class _Copy:
    """Copies nodes as a crash leaves them; no chance means that all is left."""

    def __init__(self, chance: random.Random | None) -> None:
        self._chance = chance
        self._made: dict[Node, Node] = {}
        self._inos: set[int] = set()

    def disk(self, root: Directory, mount: Path) -> SimulatedDisk:
        disk = SimulatedDisk(mount)
        disk.root = self._directory(root)
        disk.has_drive_cache = False
        return disk

    def _node(self, node: Node) -> Node:
        made = self._made.get(node)
        if made is None:
            made = self._file(node) if isinstance(node, File) else self._directory(node)
            self._made[node] = made
        return made

    def _directory(self, node: Directory) -> Directory:
        names = {name: self._node(child) for name, child in self._names(node).items()}
        return Directory(self._ino(node.ino), names, dict(names))

    def _names(self, node: Directory) -> dict[str, Node]:
        if self._chance is None:
            return node.names
        names = dict(node.synced)
        changes: dict[str, list[Node | None]] = {}
        for name, child in node.pending:
            changes.setdefault(name, [names.get(name)]).append(child)
        for name, versions in changes.items():
            left = self._chance.choice(versions)
            names.pop(name, None)
            if left is not None:
                names[name] = left
        return names

    def _file(self, node: File) -> File:
        content = bytes(node.content) if self._chance is None else self._torn(node, self._chance)
        times = [node.mtime_ns] if self._chance is None else [node.mtime_ns, node.synced_mtime_ns]
        mtime_ns = times[0] if self._chance is None else self._chance.choice(times)
        return File(self._ino(node.ino), mtime_ns, content, content, mtime_ns)

    def _torn(self, node: File, chance: random.Random) -> bytes:
        if not node.dirty and len(node.synced) == len(node.content):
            return node.synced
        sizes = [len(node.synced), len(node.content)]
        size = chance.choice([*sizes, chance.randint(min(sizes), max(sizes)) // PAGE * PAGE])
        torn = bytearray(node.synced[:size].ljust(size, b"\0"))
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        for page in node.dirty:
            if chance.random() < share:
                there = slice(page * PAGE, min((page + 1) * PAGE, size))
                torn[there] = node.content[there].ljust(max(0, there.stop - there.start), b"\0")
        return bytes(torn[:size])

    def _ino(self, wish: int) -> int:
        """Keep the number, unless another that came back has it."""
        while wish in self._inos:
            wish += 1000
        self._inos.add(wish)
        return wish


class _Frozen:
    """Copies nodes with what they have not synced."""

    def __init__(self) -> None:
        self._made: dict[Node, Node] = {}

    def directory(self, node: Directory) -> Directory:
        frozen = Directory(node.ino)
        self._made[node] = frozen
        frozen.names = {name: self._node(child) for name, child in node.names.items()}
        frozen.synced = {name: self._node(child) for name, child in node.synced.items()}
        frozen.pending = [
            (name, None if child is None else self._node(child)) for name, child in node.pending
        ]
        return frozen

    def _node(self, node: Node) -> Node:
        made = self._made.get(node)
        if made is None:
            made = self._file(node) if isinstance(node, File) else self.directory(node)
            self._made[node] = made
        return made

    def _file(self, node: File) -> File:
        content, dirty = bytes(node.content), set(node.dirty)
        return File(node.ino, node.mtime_ns, content, node.synced, node.synced_mtime_ns, dirty)


def _nodes(folder: Directory) -> list[Node]:
    found: list[Node] = [folder]
    for child in folder.names.values():
        found += _nodes(child) if isinstance(child, Directory) else [child]
    return found


def _contents(folder: Directory, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name, child in folder.names.items():
        if isinstance(child, File):
            found.append((path + name, bytes(child.content)))
        else:
            found += _contents(child, f"{path}{name}/")
    return found


def _stat(node: Node) -> os.stat_result:
    is_file = isinstance(node, File)
    size = len(node.content) if isinstance(node, File) else PAGE
    mtime_ns = node.mtime_ns if isinstance(node, File) else 0
    mode = stat.S_IFREG | 0o600 if is_file else stat.S_IFDIR | 0o700
    now_s = int(time.time())
    seconds = (now_s, mtime_ns // 10**9, now_s)
    return os.stat_result(
        (mode, node.ino, 1, 1, 0, 0, size, *seconds),
        {"st_mtime_ns": mtime_ns, "st_blocks": -(-size // PAGE) * 8, "st_ctime": float(now_s)},
    )


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
