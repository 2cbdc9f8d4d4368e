"""Files and folders in memory: as they are, as they were synced, and as a crash leaves them."""

import os
import random
import stat
import time
from dataclasses import dataclass, field
from typing import TypeAlias

PAGE = 4096


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


class Copy:
    """Copies nodes as a crash leaves them; no chance means that all is left."""

    def __init__(self, chance: random.Random | None) -> None:
        self._chance = chance
        self._made: dict[Node, Node] = {}
        self._inos: set[int] = set()

    def directory(self, node: Directory) -> Directory:
        """Copy a folder and all that is in it."""
        names = {name: self._node(child) for name, child in self._names(node).items()}
        return Directory(self._ino(node.ino), names, dict(names))

    def _node(self, node: Node) -> Node:
        made = self._made.get(node)
        if made is None:
            made = self._file(node) if isinstance(node, File) else self.directory(node)
            self._made[node] = made
        return made

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


class Frozen:
    """Copies nodes with what they have not synced."""

    def __init__(self) -> None:
        self._made: dict[Node, Node] = {}

    def directory(self, node: Directory) -> Directory:
        """Copy a folder and all that is in it."""
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


def nodes(folder: Directory) -> list[Node]:
    """Find a folder and all that is in it."""
    found: list[Node] = [folder]
    for child in folder.names.values():
        found += nodes(child) if isinstance(child, Directory) else [child]
    return found


def contents(folder: Directory, path: str) -> list[tuple[str, bytes]]:
    """Find the files of a folder, each by ``path`` and its own."""
    found: list[tuple[str, bytes]] = []
    for name, child in folder.names.items():
        if isinstance(child, File):
            found.append((path + name, bytes(child.content)))
        else:
            found += contents(child, f"{path}{name}/")
    return found


def stat_of(node: Node) -> os.stat_result:
    """Say of a node what the system would."""
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
