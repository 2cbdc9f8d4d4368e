"""Takes prefixes out of such a file into a running store: first all is proved, then it is stored.

Objects go the way that a worker's go, what others follow from first: reserved, copied from a
staging of our own, summed, made visible, written. So an import that ends early has left nothing
but whole prefixes, and one that is run again goes on where it ended.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import stat as modes
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from bramley.cachestore.artifacts import (
    LENGTH_BYTES,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    TAR_BLOCK,
    FileRecord,
    Line,
    Manifest,
    Unfit,
    check_member,
    decode_manifest,
    decode_object,
    header_bytes,
    member,
    places,
)
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.files import Files
from bramley.cachestore.leases import Wish, WriteLease
from bramley.cachestore.objects import StoredObject, padded
from bramley.cachestore.pack import file_errors
from bramley.cachestore.segments import Segment, create
from bramley.cachestore.store import Existing, Refused, Store
from bramley.cachestore.wishes import Seal
from bramley.common.errors import InvalidRequest, NotLoaded, Overloaded
from bramley.common.logs import facts

log = logging.getLogger(__name__)

TRIES = 10  # where room may come about


@dataclass(frozen=True)
class Unpacked:
    """How far it is.

    Attributes:
        size_proved: bytes of the file.
        size_total: of the file.
        objects: taken in.
        size: of those.
        skipped: were there already.
        held: of those taken in, how many have no file.
    """

    size_proved: int = 0
    size_total: int = 0
    objects: int = 0
    size: int = 0
    skipped: int = 0
    held: int = 0


async def unpack(store: Store, path: Path, files: Files) -> AsyncGenerator[Unpacked]:
    """Prove a file, and take in what is not there yet.

    Args:
        store: to take it in.
        path: of the file.
        files: how to read it.

    Yields:
        How far it is, after each object.

    ``Unfit`` is raised for a file that is not to be taken in, and nothing of it is;
    ``Overloaded`` where there is no room for all of it, and what was taken in stays;
    ``NotLoaded`` where the store keeps the state of the model otherwise.
    """
    archive = _Archive(files, path)
    with file_errors(), contextlib.closing(archive):
        await asyncio.to_thread(archive.open)
        manifest = await asyncio.to_thread(archive.manifest)
        _check_room(store, manifest)
        await _check_volume(store, manifest)
        _check_groups(store, manifest)
        largest = max(one.size for one in manifest.files)
        staging = await asyncio.to_thread(create, padded(largest), writable=True)
        try:
            objects: list[StoredObject] = []
            line = Line(manifest.namespaces)
            for number, record in enumerate(manifest.files):
                stored = await asyncio.to_thread(archive.prove, number, staging.view)
                line.add(stored)
                objects.append(stored)
                yield Unpacked(archive.offset(number) + record.size, archive.size)
            await asyncio.to_thread(archive.prove_end)
            await _open_namespaces(store, manifest)
            taking = _take_all_in(store, archive, objects, staging)
            async with contextlib.aclosing(taking):
                async for at in taking:
                    yield at
        finally:
            staging.close_descriptors()
    log.info("imported", extra=facts(file=path, objects=len(objects)))


async def _take_all_in(
    store: Store, archive: "_Archive", objects: Sequence[StoredObject], staging: Segment
) -> AsyncGenerator[Unpacked]:
    done = Unpacked(archive.size, archive.size)
    for number, stored in enumerate(objects):
        entry = await _take_in(store, archive, number, stored, staging)
        if entry is None:
            done = replace(done, skipped=done.skipped + 1)
        else:
            size = done.size + stored.payload_bytes
            held = done.held + (not entry.on_disk)
            done = replace(done, objects=done.objects + 1, size=size, held=held)
        yield done


def _check_room(store: Store, manifest: Manifest) -> None:
    """Refuse what can never fit, before it is read."""
    gauges = store.gauges()
    tier = "ssd" if gauges["ssd_is_on"] else "ram"
    largest = max(one.size for one in manifest.files)
    total = sum(one.size for one in manifest.files)
    for size, limit, what in (
        (largest, gauges["ram_budget_bytes"], "store.ram_bytes"),
        (total, gauges[f"{tier}_budget_bytes"], f"store.{'disk' if tier == 'ssd' else tier}_bytes"),
    ):
        if size > limit:
            problem = f"{size} bytes of it have no room in {limit}: raise {what}"
            raise Overloaded(problem, reason="NO_ROOM")


async def _check_volume(store: Store, manifest: Manifest) -> None:
    """Refuse what would not fit if all others left for it, before any of them does."""
    total = sum(one.size for one in manifest.files)
    if store.spiller is not None and not await store.spiller.could_hold(total):
        problem = f"{total} bytes of it have no room on the disk, even if all else there left"
        raise Overloaded(problem, reason="NO_ROOM")


def _check_groups(store: Store, manifest: Manifest) -> None:
    for one in manifest.namespaces:
        known = store.namespaces.get(bytes.fromhex(one.root))
        if known is not None and set(known.groups) != set(one.groups):
            raise NotLoaded(
                f"the state of namespace {one.root[:16]} is kept in other groups here",
                reason="GROUPS_DIFFER",
            )


async def _open_namespaces(store: Store, manifest: Manifest) -> None:
    tiers = store.tiers
    for one in manifest.namespaces:
        root = bytes.fromhex(one.root)
        if root not in store.namespaces:
            store.open_namespace(one.identity, one.groups, 0.0)
        if tiers.disk is not None:
            with contextlib.suppress(OSError):  # its name only helps to explain
                await tiers.on_disk_thread(tiers.disk.put_namespace, root, one.identity)


async def _take_in(
    store: Store, archive: "_Archive", number: int, stored: StoredObject, staging: Segment
) -> Entry | None:
    """Store one object, and wait until it is written; None if it was there already."""
    lease = await _reserved(store, stored)
    if isinstance(lease, Existing):
        return None
    try:
        await asyncio.to_thread(archive.read_payload, number, stored, staging.view)
    except BaseException:
        store.abort(lease.id, lease.generation)
        raise
    seal = Seal(
        chains=b"".join(part.chain for part in stored.parts),
        token_ids_le=stored.token_ids_le,
        checksums=b"".join(part.checksum for part in stored.parts),
        header=stored.header,
        session_key=stored.session_key,
        source=(staging, 0),
    )
    try:
        entry = await store.seal(lease.id, lease.generation, seal)
    except InvalidRequest as error:
        raise Unfit("it was changed while it was read") from error
    if entry.run is not lease.run:
        return None  # another one holds all that this one would
    if store.spiller is not None:
        await store.spiller.until_written([entry])
    return entry


async def _reserved(store: Store, stored: StoredObject) -> WriteLease | Existing:
    wish = Wish(
        root=stored.root,
        kind=stored.kind,
        group=stored.group,
        parent=stored.parent,
        chain=stored.chain,
        first_token=stored.first_token,
        tokens=stored.tokens,
        nbytes=sum(part.nbytes for part in stored.parts),
    )
    for tries_left in reversed(range(TRIES)):
        try:
            return await store.reserve("", wish)
        except Refused as refusal:
            if refusal.retry_after_s is None or not tries_left:
                raise Overloaded(
                    f"there is no room for the rest: {refusal.message}", reason=refusal.reason
                ) from refusal
            await asyncio.sleep(refusal.retry_after_s)
    raise AssertionError("the last try neither gave nor raised")


class _Archive:
    """The file, open for as long as it is read. All of it blocks."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._fd = -1
        self._names: set[str] = set()
        self._records: tuple[FileRecord, ...] = ()
        self._places: list[int] = []
        self.size = 0

    def open(self) -> None:
        self._fd = self._files.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait
        stat = self._files.fstat(self._fd)
        if not modes.S_ISREG(stat.st_mode):
            raise Unfit("it is no plain file", reason="ARTIFACT_UNSAFE")
        self.size = stat.st_size

    def manifest(self) -> Manifest:
        """Read the manifest, and learn from it where everything is."""
        first = member(self._read(0, TAR_BLOCK))
        if first.name != MANIFEST:
            raise Unfit("it does not begin with a manifest", reason="ARTIFACT_FOREIGN")
        if not 0 < first.size <= MANIFEST_BYTES_MAX or first.size % TAR_BLOCK:
            raise Unfit(f"its manifest cannot have {first.size} bytes")
        manifest = decode_manifest(self._read(TAR_BLOCK, first.size))
        self._records = manifest.files
        self._places = places(first.size, manifest.files)
        if self.size < self._places[-1]:
            raise Unfit(f"it is cut short: {self.size} bytes of {self._places[-1]}")
        if self.size > self._places[-1]:
            raise Unfit(f"it goes on after its end: {self.size} bytes of {self._places[-1]}")
        return manifest

    def offset(self, number: int) -> int:
        return self._places[number]

    def prove(self, number: int, buffer: memoryview) -> StoredObject:
        """Read all of an object, and prove it."""
        record, offset = self._records[number], self._places[number]
        block = self._read(offset - TAR_BLOCK, TAR_BLOCK)
        check_member(block, record.name, record.size, self._names)
        self._names.add(record.name)
        whole = buffer[: record.size]
        self._read_into(whole, offset)
        if hashlib.sha256(whole).hexdigest() != record.sha256:
            raise Unfit(f"{record.name} in it does not match its sum")
        length = header_bytes(bytes(whole[:LENGTH_BYTES]), record.size)
        stored = decode_object(bytes(whole[:length]), record)
        start = length
        for part in stored.parts:
            if xxhash.xxh3_128_digest(whole[start : start + part.nbytes]) != part.checksum:
                raise Unfit(f"a block of {record.name} in it does not match its checksum")
            start += padded(part.nbytes)
        return stored

    def prove_end(self) -> None:
        """Check that nothing follows the last object."""
        last = self._places[-2] + self._records[-1].size
        if any(self._read(last, self.size - last)):
            raise Unfit("something follows its last object", reason="ARTIFACT_UNSAFE")

    def read_payload(self, number: int, stored: StoredObject, buffer: memoryview) -> None:
        """Read what was proved, once more; what became of it meanwhile, its checksums tell."""
        size = stored.payload_bytes
        end = self._places[number] + self._records[number].size
        self._read_into(buffer[:size], end - size)

    def _read(self, offset: int, size: int) -> bytes:
        target = bytearray(size)
        self._read_into(memoryview(target), offset)
        return bytes(target)

    def _read_into(self, target: memoryview, offset: int) -> None:
        if self._files.read_into(self._fd, target, offset) < len(target):
            raise Unfit(f"it is cut short, at {self.size} bytes")

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
