"""Writes prefixes of a running store to one file, which another store can take in.

The file has its name only when it is whole. Requests go on meanwhile: only the object that is
being written is leased. Those that wait stay in the store, and may leave RAM if they have a file.
"""

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bramley.cachestore import admin
from bramley.cachestore.artifacts import (
    MANIFEST,
    NO_SUM,
    FileRecord,
    Manifest,
    NamespaceRecord,
    encode_manifest,
    file_record,
    file_size,
    places,
    tar_header,
)
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.closure import closure, parents_first, told_by
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.files import FULL, Files
from bramley.cachestore.format import encode_header
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.store import Store
from bramley.common.errors import (
    AlreadyExists,
    InvalidRequest,
    NotLoaded,
    Overloaded,
)
from bramley.common.logs import facts

log = logging.getLogger(__name__)

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP}
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.EISDIR}  # of older systems: it opens the folder


@dataclass(frozen=True)
class Packed:
    """How far it is.

    Attributes:
        left_out: objects that were asked for and cannot be used on their own.
    """

    objects: int
    size: int
    objects_total: int
    size_total: int
    left_out: int


def absolute(path: str) -> Path:
    """Check a path that a caller named.

    Returns:
        It.

    Raises:
        InvalidRequest: it does not say the same to us as to the caller.
    """
    found = Path(path)
    if not found.is_absolute() or "\0" in path:
        raise InvalidRequest("path", "it is not absolute")
    return found


@contextlib.contextmanager
def file_errors() -> Generator[None]:
    """Word what the system says of a file that the caller named.

    Yields:
        Nothing.

    Raises:
        Overloaded: there is no room for it.
        InvalidRequest: it cannot be used.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise Overloaded("there is no room for the file", reason="DISK_FULL") from error
        problem = error.strerror or str(error)
        raise InvalidRequest("path", problem, reason="FILE_UNUSABLE") from error


async def pack(
    store: Store, object_ids: Iterable[str], path: Path, files: Files
) -> AsyncGenerator[Packed]:
    """Write objects, and all that it takes to use them, to a new file.

    Args:
        store: whose they are.
        object_ids: unknown ones are counted as left out.
        path: of the file.
        files: how to write it.

    Yields:
        How far it is, after each object.

    ``InvalidRequest`` and ``AlreadyExists`` are raised for a path that cannot be used,
    ``Overloaded`` where there is no room, ``NotLoaded`` where there is nothing that could be
    used, or an object turned out to be damaged.
    """
    choice = _Choice(store)
    try:
        await choice.fill(list(object_ids))
        manifest = choice.manifest()
        writer = _Writer(files, path, manifest, len(choice.entries))
        size = 0
        with file_errors(), contextlib.closing(writer):
            await asyncio.to_thread(writer.open)
            for number, entry in enumerate(choice.entries):
                with admin.leased(store, entry):
                    await _write(store, writer, number, entry)
                choice.release(entry)
                size += manifest.files[number].size
                yield Packed(number + 1, size, len(choice.entries), choice.size, choice.left_out)
            await asyncio.to_thread(writer.publish)
        log.info("exported", extra=facts(file=path, objects=len(choice.entries), bytes=size))
    finally:
        choice.close()


class _Choice:
    """What is to be written, kept until it is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, Entry] = {}
        self._namespaces: dict[bytes, Namespace] = {}
        self.entries: list[Entry] = []
        self.size = 0
        self.left_out = 0

    async def fill(self, object_ids: Sequence[str]) -> None:
        wanted = admin.known(self._store, object_ids)
        self.left_out = len(object_ids) - len(wanted)
        for number, entry in enumerate(sorted(wanted, key=lambda one: -one.end_token)):
            await admin.give_way(number)
            if entry.id not in self._kept:  # or it is a part of what is chosen already
                self._take(entry)
        if not self.entries:
            raise NotLoaded(
                "nothing of it can be used on its own: parts of the prompts have gone",
                reason="NOTHING_TO_EXPORT",
            )
        self.entries = parents_first(self.entries)
        self.size = sum(file_size(entry.object) for entry in self.entries)

    def _take(self, entry: Entry) -> None:
        namespace = self._namespace(entry.object.root)
        is_there = entry.id in self._store.tiers.catalogue.entries
        needed: list[Entry] = []
        if namespace is not None and is_there:
            needed = closure(self._store.tiers.catalogue, namespace, entry)
        if not needed:
            self.left_out += 1
        for one in needed:
            if one.id not in self._kept:
                one.kept += 1
                self._kept[one.id] = one
                self.entries.append(one)

    def _namespace(self, root: bytes) -> Namespace | None:
        """Find a namespace; None where nothing tells what its root stands for."""
        if root not in self._namespaces:
            found = self._store.namespaces.get(root)
            disk = self._store.tiers.disk
            identity = disk.namespaces().get(root) if disk is not None else None
            if found is None and identity is not None:
                entries = self._store.tiers.catalogue.entries.values()
                found = told_by((one for one in entries if one.object.root == root), root, identity)
            if found is None:
                return None
            self._namespaces[root] = found
        return self._namespaces[root]

    def manifest(self) -> Manifest:
        used = {entry.object.root for entry in self.entries}
        return Manifest(
            namespaces=tuple(
                NamespaceRecord(root=root.hex(), identity=one.identity, groups=one.groups)
                for root, one in sorted(self._namespaces.items())
                if root in used
            ),
            files=tuple(
                file_record(entry.object, file_size(entry.object)) for entry in self.entries
            ),
        )

    def release(self, entry: Entry) -> None:
        """Let an object go; what follows from it still keeps it, until that is written too."""
        self._kept.pop(entry.id).kept -= 1

    def close(self) -> None:
        for entry in self._kept.values():
            entry.kept -= 1


async def _write(store: Store, writer: "_Writer", number: int, entry: Entry) -> None:
    """Write one object, from where its bytes are, each part proved."""
    stored = entry.object
    if entry.run is not None:
        payload = store.tiers.memory.view(entry.run)[: stored.payload_bytes]
        sizes = [part.nbytes for part in stored.parts]
        sums = await asyncio.to_thread(checksums_of, payload, sizes)
        if sums != [part.checksum for part in stored.parts]:
            store.tiers.quarantine(entry)
            raise _lost(entry)
        await asyncio.to_thread(writer.write, number, encode_header(stored), [payload])
        return
    pieces: list[memoryview] = []
    for at in range(len(stored.parts)):
        piece = await store.tiers.read_part(entry, at)
        if piece is None:
            raise _lost(entry)
        pieces.append(piece)
    await asyncio.to_thread(writer.write, number, encode_header(stored), pieces)


def _lost(entry: Entry) -> NotLoaded:
    return NotLoaded(
        f"the object {entry.id} was damaged or lost meanwhile: export again", reason="OBJECT_LOST"
    )


class _Writer:
    """The file, without a name until it is whole. All of it blocks.

    Where a file must have one, it has a hidden one meanwhile, which stays if the store is killed.
    """

    def __init__(self, files: Files, path: Path, manifest: Manifest, count: int) -> None:
        self._files = files
        self._path = path
        self._tmp = path.with_name(f".{secrets.token_hex(8)}.export")
        self._manifest = manifest
        self._manifest_bytes = len(encode_manifest(manifest))
        self._places = places(self._manifest_bytes, manifest.files)
        self._sums = [NO_SUM] * count
        self._is_named = False
        self._fd = -1

    def open(self) -> None:
        self._refuse_existing()
        try:
            self._fd = self._files.open_unnamed(self._path.parent)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
            self._fd = self._files.open(self._tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self._is_named = True
        self._files.preallocate(self._fd, self._places[-1])

    def _refuse_existing(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.stat(self._path)
            raise AlreadyExists(f"path: {self._path} is there already", reason="FILE_EXISTS")

    def write(self, number: int, header: bytes, payload: Sequence[memoryview]) -> None:
        record, offset = self._manifest.files[number], self._places[number]
        digest = hashlib.sha256()
        member = tar_header(record.name, record.size)
        self._files.write(self._fd, member, offset - len(member))
        for piece in (header, *payload):
            digest.update(piece)
            self._files.write(self._fd, piece, offset)
            offset += len(piece)
        self._sums[number] = digest.hexdigest()

    def publish(self) -> None:
        """Write the manifest, sync, and give the file its name."""
        text = encode_manifest(self._summed())
        assert len(text) == self._manifest_bytes, "a sum changed the manifest's length"
        self._files.write(self._fd, tar_header(MANIFEST, len(text)) + text, 0)
        self._files.fdatasync(self._fd)
        try:
            if self._is_named:
                self._files.link(self._tmp, self._path)
            else:
                self._files.name(self._fd, self._path)
        except FileExistsError:
            self._refuse_existing()
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS or not self._is_named:
                raise
            self._refuse_existing()
            self._files.rename(self._tmp, self._path)
        self._files.fsync_dir(self._path.parent)

    def _summed(self) -> Manifest:
        pairs = zip(self._manifest.files, self._sums, strict=True)
        files: list[FileRecord] = [
            msgspec.structs.replace(record, sha256=sha256) for record, sha256 in pairs
        ]
        return msgspec.structs.replace(self._manifest, files=tuple(files))

    def close(self) -> None:
        """End it; without ``publish`` nothing is left."""
        if self._fd < 0:
            return
        self._files.close(self._fd)
        self._fd = -1
        if self._is_named:
            with contextlib.suppress(OSError):  # named as a hidden file, for its owner to remove
                self._files.unlink(self._tmp)
