"""The folder of a store: what lies where in it, and that it has one owner.

STORE                           format, the store's id; locked by its owner
index.db                        may be deleted at any time
ns/<root>/namespace.json        16 digits of the root
ns/<root>/<xx>/<id>.kvx         xx: the first two digits of the id
tmp/                            of writes under way
quarantine/                     damaged files, at most QUARANTINE_BYTES and QUARANTINE_S
"""

import contextlib
import errno
import os
import re
import secrets
import stat as modes
import time
from pathlib import Path

import msgspec

from bramley.cachestore.files import Files, on_disk
from bramley.cachestore.format import FORMAT, SUFFIX
from bramley.cachestore.keys import HASH_BYTES, Identity, root

QUARANTINE_BYTES = 1 << 30
QUARANTINE_S = 7 * 86_400.0

FAN = re.compile(r"[0-9a-f]{2}")

_ID = re.compile(r"[0-9a-f]{2,128}")
_TOLD = "namespace.json"


class DiskUnavailable(OSError):
    """The folder cannot hold a store now: not writable, in use, or a newer version's."""

    def __init__(self, path: Path, why: str, code: int | None = None) -> None:
        super().__init__(code or errno.EIO, f"{path} cannot hold the cache store: {why}")


class _Store(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    id: str
    created_s: float


class _Namespace(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    identity: Identity


class Folder:
    """Names and places. Nothing is touched before ``claim``."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path.absolute()
        self.files = files
        self.store = self.path / "STORE"
        self.index = self.path / "index.db"
        self.namespaces = self.path / "ns"
        self.tmp = self.path / "tmp"
        self.quarantine = self.path / "quarantine"
        self.store_id = ""
        self._fd = -1

    def index_files(self) -> list[Path]:
        """The index and what SQLite puts beside it."""
        return [self.index.with_name(self.index.name + end) for end in ("", "-wal", "-shm")]

    def namespace(self, root: bytes) -> Path:
        """Where the objects of a namespace lie."""
        return self.namespaces / root.hex()[:16]

    def object(self, root: bytes, object_id: str) -> Path:
        """Where an object lies.

        Returns:
            The path of its file.

        Raises:
            ValueError: the id is not one: lower-case hex, at least two digits.
        """
        if not _ID.fullmatch(object_id):
            raise ValueError(f"{object_id!r} is not the id of an object")
        return self.namespace(root) / object_id[:2] / f"{object_id}{SUFFIX}"

    def is_object(self, path: Path) -> bool:
        """Whether a file below ``namespaces`` has an object's name, at its place."""
        object_id = path.name.removesuffix(SUFFIX)
        in_place = path.parent.name == object_id[:2]
        return path.suffix == SUFFIX and in_place and bool(_ID.fullmatch(object_id))

    def claim(self, *, make: bool = True) -> None:
        """Become the owner until ``release``, and make what is missing.

        Args:
            make: also where no store is yet.

        Raises:
            DiskUnavailable: with a sentence for the log.
        """
        try:
            if make:
                self._make_whole_path()
                self._refuse_others_folder()
                self.files.restrict(self.path)
            self._lock(os.O_RDWR | (os.O_CREAT if make else 0))
            self.store_id = self._read_store()
            self.make_places()
        except DiskUnavailable:
            self.release()
            raise
        except OSError as error:
            self.release()
            raise DiskUnavailable(self.path, error.strerror or str(error), error.errno) from error

    def make_places(self) -> None:
        """Make the folders of the store that are missing."""
        for path in (self.namespaces, self.tmp, self.quarantine):
            self.ensure(path)

    def _make_whole_path(self) -> None:
        for path in reversed((self.path, *self.path.parents)):
            if not path.is_dir():
                self.ensure(path)

    def _refuse_others_folder(self) -> None:
        """Leave alone what is no store: its mode, and what would pass for leftovers of ours."""
        names = self.files.list(self.path)
        if self.store.name in names or self.namespaces.name in names:
            return
        for name in names:  # the root of a volume has some of its own
            if name != "lost+found" and not name.startswith("."):
                why = f"it is no store, and holds {name!r}: name a folder that is empty or new"
                raise DiskUnavailable(self.path, why, errno.ENOTEMPTY)

    def _lock(self, flags: int) -> None:
        self._fd = self.files.open(self.store, flags)
        try:
            self.files.lock(self._fd)
        except BlockingIOError as error:
            raise DiskUnavailable(self.path, "another one owns it", error.errno) from error

    def _read_store(self) -> str:
        """Read who this store is; one whose file is torn gets a new id."""
        text = bytearray(4096)
        length = self.files.read_into(self._fd, memoryview(text), 0)
        try:
            store = msgspec.json.decode(text[:length], type=_Store)
        except (msgspec.DecodeError, ValueError):
            store = _Store(format=FORMAT, id=secrets.token_hex(16), created_s=time.time())
            self.files.write(self._fd, msgspec.json.encode(store).ljust(length), 0)
            self.files.fdatasync(self._fd)
            self.files.fsync_dir(self.path)
        if store.format > FORMAT:
            raise DiskUnavailable(self.path, f"its format is {store.format}, newer than {FORMAT}")
        return store.id

    def is_there(self) -> bool:
        """Whether the folder that was claimed still has its name."""
        try:
            return self.files.stat(self.store).st_ino == self.files.fstat(self._fd).st_ino
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Let another one own it."""
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1

    def full_sync(self) -> None:
        """Put all that was synced before on the drive's medium."""
        self.files.full_sync(self._fd)

    def ensure(self, path: Path) -> int:
        """Make a folder if it is missing; durably, also if who made it died before it was.

        Returns:
            Bytes that it takes on the disk; 0 if it was there.

        Raises:
            NotADirectoryError: something else has the name.
        """
        try:
            self.files.mkdir(path)
        except FileExistsError:
            if not modes.S_ISDIR(self.files.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path)) from None
            size = 0
        else:
            size = on_disk(self.files.stat(path))
        self.files.fsync_dir(path.parent)
        return size

    def read_namespace(self, folder: Path) -> tuple[bytes, Identity] | None:
        """Read which namespace a folder is of; None if it does not tell."""
        try:
            fd = self.files.open(folder / _TOLD, os.O_RDONLY)
        except OSError:
            return None
        try:
            text = bytearray(self.files.fstat(fd).st_size)
            self.files.read_into(fd, memoryview(text), 0)
            read = msgspec.json.decode(text, type=_Namespace)
        except (OSError, msgspec.DecodeError, ValueError):
            return None
        finally:
            self.files.close(fd)
        name = root(read.identity)
        return (name, read.identity) if read.root == name.hex() else None

    def write_namespace(self, name: bytes, identity: Identity) -> int:
        """Write which namespace a folder is of, over what it may have told before.

        Returns:
            Bytes that it takes on the disk.

        Raises:
            ValueError: the name is no root.
            OSError: the disk failed, and nothing is changed.
        """
        if len(name) != HASH_BYTES:
            raise ValueError(f"{name.hex()} is not the root of a namespace")
        folder = self.namespace(name)
        size = self.ensure(folder)
        text = msgspec.json.format(
            msgspec.json.encode(_Namespace(root=name.hex(), identity=identity))
        )
        tmp = self.tmp / f"{name.hex()}.{secrets.token_hex(4)}"
        try:
            size += self._write_new(tmp, text)
            self.files.rename(tmp, folder / _TOLD)
        except OSError:
            with contextlib.suppress(OSError):  # the next start clears it
                self.files.unlink(tmp)
            raise
        self.files.fsync_dir(folder)
        return size

    def clear_namespace(self, folder: Path) -> int:
        """Remove the folder of a namespace without objects, if nothing in it is another's.

        Returns:
            Bytes of the disk that became free; 0 if it stays.

        Raises:
            OSError: the disk failed, or something in it is no folder; the next start tries again.
        """
        names = self.files.list(folder)
        fans = [folder / name for name in names if name != _TOLD]
        if any(not FAN.fullmatch(fan.name) or self.files.list(fan) for fan in fans):
            return 0
        freed = sum(on_disk(self.files.stat(path)) for path in (*fans, folder))
        if _TOLD in names:
            known = self.read_namespace(folder)
            if known is None or self.namespace(known[0]) != folder:
                return 0
            freed += on_disk(self.files.stat(folder / _TOLD))
        for fan in fans:
            self.files.rmdir(fan)
        self.files.unlink(folder / _TOLD)
        self.files.rmdir(folder)
        return freed

    def _write_new(self, path: Path, content: bytes) -> int:
        """Write a small new file, and return what it takes on the disk."""
        fd = self.files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.files.write(fd, content, 0)
            self.files.fdatasync(fd)
            return on_disk(self.files.fstat(fd))
        finally:
            self.files.close(fd)

    def set_aside(self, path: Path) -> None:
        """Move a damaged file to the quarantine."""
        aside = self.quarantine / f"{path.name}.{time.time_ns():x}"
        try:
            self.files.rename(path, aside)
        except FileNotFoundError:
            self.files.stat(path)  # or else it is the file that has gone
            self.ensure(self.quarantine)
            self.files.rename(path, aside)

    def trim_quarantine(self) -> int:
        """Remove the oldest files beyond the quarantine's bounds.

        Returns:
            Bytes of the disk that became free.
        """
        aged = self._aside()
        total, freed, oldest_s = sum(size for _, size, _ in aged), 0, time.time() - QUARANTINE_S
        for moved_s, size, path in sorted(aged):
            if total - freed > QUARANTINE_BYTES or moved_s < oldest_s:
                self.files.unlink(path)
                freed += size
        return freed

    def quarantined(self) -> int:
        """Bytes of the disk that the quarantine's files take; 0 where they cannot be read."""
        try:
            return sum(size for _, size, _ in self._aside())
        except OSError:
            return 0

    def _aside(self) -> list[tuple[float, int, Path]]:
        """What lies in the quarantine: since when, and how large."""
        aged: list[tuple[float, int, Path]] = []
        for name in self.files.list(self.quarantine):
            stat = self.files.stat(self.quarantine / name)
            if modes.S_ISREG(stat.st_mode):
                aged.append((stat.st_ctime, on_disk(stat), self.quarantine / name))
        return aged
