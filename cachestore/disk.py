"""The store's durable side: objects as files in one folder, found again after any crash.

    write tmp/<id> → fdatasync → link to its name → fsync the folder → unlink tmp → index row

Only then is an object listed or read. A listed file is never changed, only unlinked. All of
it blocks; one thread writes, any number read.
"""

import contextlib
import errno
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path

from bramley.cachestore.files import FULL, Files, on_disk
from bramley.cachestore.folder import Folder
from bramley.cachestore.format import (
    Damaged,
    FileEntry,
    NotOurs,
    read_file,
    read_parts,
    write_file,
)
from bramley.cachestore.index import Index
from bramley.cachestore.keys import Identity
from bramley.cachestore.objects import StoredObject, padded
from bramley.cachestore.recover import Survey, bytes_on_disk, recover
from bramley.common.logs import facts

log = logging.getLogger(__name__)

UNTOLD_MAX = 1024

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP}


class DiskFull(OSError):
    """There is no room, or no quota, for what was to be written."""


class FolderGone(FileNotFoundError):
    """The folder was moved or removed; what it holds may come back with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ENOENT, "the cache store's folder is not there", str(path))


class Disk:
    """One open folder. Make it with ``open``.

    Attributes:
        found: what was in the folder at ``open``, for logs and metrics.
        store_id: of the folder, made with it.
        quarantine_bytes: of the files that were set aside.
    """

    def __init__(self, folder: Folder, index: Index, found: Survey) -> None:
        self._folder = folder
        self._files = folder.files
        self._index = index
        self.found = found
        self.store_id = folder.store_id
        self._lock = threading.Lock()  # of what follows; never held over I/O
        self._entries = dict(found.entries)
        self._namespaces = dict(found.namespaces)
        self._untold: dict[bytes, Identity] = {}  # of namespaces that are not in the folder
        self._roots = Counter(entry.object.root for entry in found.entries.values())
        self._used = {key: at_s for key, at_s in index.used().items() if key in self._entries}
        self._bytes = bytes_on_disk(folder, folder.path) - self._index_bytes()
        self._index_size = self._index_bytes()
        self.quarantine_bytes = folder.quarantined()
        self._made: set[Path] = set()
        self._numbers = itertools.count()

    @classmethod
    def open(cls, folder: Path, files: Files | None = None) -> "Disk":
        """Take the folder, make what is missing, and find what is there.

        Returns:
            The disk, owned until ``close`` or the process's death.

        Raises:
            DiskUnavailable: it cannot hold a store now; the store can run without.
        """
        place = Folder(folder, files or Files())
        place.claim()
        index = Index(place.index, place.files)
        return cls(place, index, recover(place, index))

    def objects(self) -> list[StoredObject]:
        """Objects that are there, parents before their children, older ones before newer ones."""
        with self._lock:
            stored = [entry.object for entry in self._entries.values()]
        return sorted(stored, key=lambda each: (each.first_token, each.created_s, each.id))

    def write(self, stored: StoredObject, payload: memoryview) -> None:
        """Write an object so that it survives a crash; nothing happens if it is there.

        Args:
            stored: with the checksums of its parts.
            payload: its parts, each padded to ALIGN.

        Raises:
            DiskFull: there is no room.
            FolderGone: the folder is not where it was.
            OSError: the disk failed. In all cases nothing is listed, and trying again is safe.
        """
        with self._lock:
            if stored.id in self._entries:
                return
        try:
            entry = self._put(stored, payload)
        except OSError as error:
            self._made.clear()  # a folder may have gone
            if error.errno in FULL:
                raise DiskFull(error.errno, error.strerror, error.filename) from error
            raise
        self._index.put(entry)
        self._index_size = self._index_bytes()
        with self._lock:
            self._entries[stored.id] = entry
            self._roots[stored.root] += 1

    def _put(self, stored: StoredObject, payload: memoryview) -> FileEntry:
        """Publish an object; where a folder inside ours has gone meanwhile, make it again."""
        try:
            with self._in_folder():
                return self._publish(stored, payload)
        except FolderGone:
            raise
        except FileNotFoundError:
            self._made.clear()
            self._folder.make_places()
            if stored.root in self._namespaces:
                self._untold[stored.root] = self._namespaces.pop(stored.root)
        return self._publish(stored, payload)

    @contextlib.contextmanager
    def _in_folder(self) -> Generator[None]:
        """Tell a file that is missing from a folder that is.

        Yields:
            Nothing.

        Raises:
            FolderGone: a file was not found, nor is the folder.
            FileNotFoundError: the file alone was not.
        """
        try:
            yield
        except FileNotFoundError as error:
            if self._folder.is_there():
                raise
            raise FolderGone(self._folder.path) from error

    def _publish(self, stored: StoredObject, payload: memoryview) -> FileEntry:
        final = self._folder.object(stored.root, stored.id)
        tmp = self._folder.tmp / f"{stored.id}.{next(self._numbers)}"
        booked = payload.nbytes
        self._count(booked)
        try:
            entry = write_file(self._files, tmp, stored, payload)
            self._tell(stored.root)
            self._make(final.parent)
            self._link(tmp, final)
            self._sync_name(final)
            booked -= on_disk(self._files.stat(final))
        finally:
            self._count(-booked)
            self._clear(tmp)
        return entry

    def _tell(self, root: bytes) -> None:
        """Have it lie beside an object what its namespace is, if that is known and not there."""
        if root in self._untold:
            with contextlib.suppress(OSError):  # it only helps to explain; the next write tries it
                self._write_namespace(root, self._untold[root])

    def _make(self, fan: Path) -> None:
        """Make the two folders above an object's file."""
        for path in (fan.parent, fan):
            if path not in self._made:
                self._count(self._folder.ensure(path))
                self._made.add(path)

    def _link(self, tmp: Path, final: Path) -> None:
        try:
            self._files.link(tmp, final)
        except FileExistsError:
            self._supersede(tmp, final)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._files.rename(tmp, final)  # this file system has no links; we are its one owner

    def _supersede(self, tmp: Path, final: Path) -> None:
        """Replace a file that has the name and is not listed: of a write that failed late."""
        try:
            read_file(self._files, final)
        except NotOurs as kind:
            raise FileExistsError(errno.EEXIST, f"a file {kind} has the name", str(final)) from kind
        except Damaged:
            log.warning("replaced a damaged file", extra=facts(file=final))
        self._files.rename(tmp, final)

    def _sync_name(self, final: Path) -> None:
        try:
            self._files.fsync_dir(final.parent)
        except OSError:
            self._clear(final)  # nobody was told of it
            raise

    def _clear(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the next start clears it
            self._files.unlink(path)

    def read_into(
        self, object_id: str, first_part: int, last_part: int, target: memoryview
    ) -> None:
        """Read parts ``first_part`` up to and with ``last_part``, padding too, and prove each.

        Args:
            object_id: which object.
            first_part: from 0 on.
            last_part: the last one that is read, not the one after it.
            target: exactly as long as the parts with their padding; on an error its content
                is worth nothing.

        Raises:
            FolderGone: all of it has gone.
            FileNotFoundError: there is no such object, or its file has gone.
            Damaged: the bytes are not what was written; an OSError too. To be quarantined.
            OSError: the disk failed.
            ValueError: there are no such parts, or the target has another size.
        """
        entry, path = self._listed(object_id)
        with self._in_folder():
            read_parts(self._files, path, entry, (first_part, last_part), target)

    def read_part(self, object_id: str, number: int) -> memoryview:
        """Read one part of an object, with its padding; raises as ``read_into`` does."""
        entry, _ = self._listed(object_id)
        target = memoryview(bytearray(padded(entry.object.parts[number].nbytes)))
        self.read_into(object_id, number, number, target)
        return target

    def prove_header(self, object_id: str) -> None:
        """Read what comes before an object's parts, and prove it; raises as ``read_into`` does."""
        entry, path = self._listed(object_id)
        try:
            with self._in_folder():
                found = read_file(self._files, path)
        except NotOurs as kind:
            raise Damaged(path, f"a file {kind} has its name") from kind
        if (found.object, found.start) != (entry.object, entry.start):
            raise Damaged(path, "its header is another object's")

    def _listed(self, object_id: str) -> tuple[FileEntry, Path]:
        with self._lock:
            entry = self._entries.get(object_id)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", object_id)
        return entry, self._folder.object(entry.object.root, object_id)

    def remove(self, object_id: str) -> None:
        """Remove an object; nothing happens if it is not there.

        Raises:
            OSError: its file could not be removed, and comes back at the next start.
        """
        with self._lock:
            entry = self._entries.get(object_id)
        path = self._forget(object_id)
        if path is None or entry is None:
            return
        try:
            stat = self._files.stat(path)
            self._files.unlink(path)
        except FileNotFoundError:
            if self._folder.is_there():
                self._count(-entry.size)
                self._clear_namespace(path.parent.parent)
            return
        except OSError as error:
            log.warning("could not remove a file", extra=facts(file=path, error=error))
            raise
        if stat.st_nlink == 1:  # or else its name in tmp could not be removed, and keeps it
            self._count(-on_disk(stat))
        self._clear_namespace(path.parent.parent)

    def quarantine(self, object_id: str) -> None:
        """Take a damaged object out of use at once, and keep its file apart for a while."""
        path = self._forget(object_id)
        if path is None:
            return
        try:
            self._folder.set_aside(path)
            self._count(-self._folder.trim_quarantine())
            self.quarantine_bytes = self._folder.quarantined()
        except OSError as error:
            log.warning("could not set a damaged file aside", extra=facts(file=path, error=error))
        self._clear_namespace(path.parent.parent)

    def _clear_namespace(self, folder: Path) -> None:
        """Remove a namespace's folder if its last object has left."""
        if any(self._folder.namespace(root) == folder for root in self._roots):
            return
        with contextlib.suppress(OSError):  # the next start tries it again
            self._count(-self._folder.clear_namespace(folder))
        self._made.clear()
        with self._lock:
            gone = [root for root in self._namespaces if self._folder.namespace(root) == folder]
            self._untold |= {root: self._namespaces.pop(root) for root in gone}

    def _forget(self, object_id: str) -> Path | None:
        """Take an object off the lists; returns where its file is, if it was listed."""
        with self._lock:
            entry = self._entries.pop(object_id, None)
            self._used.pop(object_id, None)
        if entry is None:
            return None
        self._roots -= Counter([entry.object.root])
        self._index.drop(object_id)
        self._index_size = self._index_bytes()
        return self._folder.object(entry.object.root, object_id)

    def put_namespace(self, root: bytes, identity: Identity) -> None:
        """Keep what a namespace's root stands for, in the folder if it has objects there.

        Without any it is known for the first one, unless many more are told of meanwhile.

        Raises:
            DiskFull: there is no room.
            OSError: the disk failed. Objects can be written all the same.
        """
        with self._lock:
            if self._namespaces.get(root) == identity:
                return
            self._untold[root] = identity
            if len(self._untold) > UNTOLD_MAX:
                del self._untold[next(iter(self._untold))]
        if root in self._roots:
            self._write_namespace(root, identity)

    def _write_namespace(self, root: bytes, identity: Identity) -> None:
        try:
            self._count(self._folder.write_namespace(root, identity))
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(error.errno, error.strerror, error.filename) from error
            raise
        with self._lock:
            self._namespaces[root] = identity
            self._untold.pop(root, None)

    def room(self) -> tuple[int, int]:
        """Bytes of the volume that are free for us, and all that it has."""
        with self._in_folder():
            return self._files.room(self._folder.path)

    def namespaces(self) -> dict[bytes, Identity]:
        """Identities by root; a root whose file was lost has objects but is not here."""
        with self._lock:
            return dict(self._namespaces)

    @property
    def used_bytes(self) -> int:
        """Bytes of the disk that the whole folder takes, quarantine and writes under way too.

        Those of the index are as of the last write. The disk is not asked.
        """
        with self._lock:
            return self._bytes + self._index_size

    def _index_bytes(self) -> int:
        return sum(bytes_on_disk(self._folder, path) for path in self._folder.index_files())

    def _count(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def touch(self, object_ids: Iterable[str], at_s: float) -> None:
        """Set when objects were last used, on the wall clock; lost if the index is."""
        with self._lock:
            used = {object_id: at_s for object_id in object_ids if object_id in self._entries}
            self._used |= used
        self._index.touch(used, at_s)
        self._index_size = self._index_bytes()

    def last_used(self) -> dict[str, float]:
        """When each object was last used, or made, on the wall clock."""
        with self._lock:
            return {
                object_id: self._used.get(object_id, entry.object.created_s)
                for object_id, entry in self._entries.items()
            }

    def note_scrub(self, after: str, round_s: float) -> None:
        """Note how far scrubbing is, and when its last round ended; lost if the index is."""
        self._index.note({"scrub_after": after, "scrub_round_s": repr(round_s)})

    def scrubbed(self) -> tuple[str, float]:
        """Tell what ``note_scrub`` noted last."""
        try:
            round_s = float(self._index.noted("scrub_round_s") or 0.0)
        except ValueError:
            round_s = 0.0
        return self._index.noted("scrub_after"), round_s

    def flush(self) -> None:
        """Put all that was written on the medium, so that it survives a power cut.

        Raises:
            FolderGone: the folder is not where it was.
            OSError: the disk failed; what was written before may not survive.
        """
        if not self._folder.is_there():
            raise FolderGone(self._folder.path)
        self._folder.full_sync()
        self._index.flush()
        self._index_size = self._index_bytes()

    def close(self, *, clean: bool) -> None:
        """Give the folder back; ``clean`` says that nothing was cut short."""
        self._index.close(clean=clean)
        self._folder.release()
