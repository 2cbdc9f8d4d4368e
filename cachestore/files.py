"""The one way to the file system for all that the store keeps (SQLite's own files apart).

Everything here blocks. A test may put a subclass in its place that records, fails or forgets.
macOS needs more than ``fsync``: that leaves the bytes in the drive's own cache.
"""

import contextlib
import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_CHUNK = 1 << 30  # one call moves less than 2 GiB

# fcntl.h of macOS; Python does not name them all.
_F_PREALLOCATE, _F_NOCACHE, _F_FULLFSYNC, _F_BARRIERFSYNC = 42, 48, 51, 85
_F_ALLOCATEALL, _F_PEOFPOSMODE = 4, 3


class Files:
    """Calls of the operating system; each raises OSError as it does."""

    def open(self, path: Path, flags: int) -> int:
        """Open and return a descriptor; a new file is 0600."""
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        if sys.platform == "darwin":
            fcntl.fcntl(fd, _F_NOCACHE, 1)  # the store's own RAM is the cache
        return fd

    def open_unnamed(self, folder: Path) -> int:
        """Open a new 0600 file in a folder, which goes with its descriptor unless it is named.

        Returns:
            The descriptor.

        Raises:
            OSError: EOPNOTSUPP where the system or the file system has no such files.
        """
        if sys.platform != "linux":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(folder))
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def name(self, fd: int, target: Path) -> None:
        """Name a file of ``open_unnamed``; FileExistsError if the name is taken."""
        # With a folder's descriptor Python makes the one call that follows the link.
        os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def lock(self, fd: int) -> None:
        """Take the file for this process until ``close`` or its death; never waits."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def preallocate(self, fd: int, size: int) -> None:
        """Give the file its size and its room, so that a full disk shows before the first byte."""
        try:
            if sys.platform == "darwin":
                request = struct.pack("=Iiqqq", _F_ALLOCATEALL, _F_PEOFPOSMODE, 0, size, 0)
                fcntl.fcntl(fd, _F_PREALLOCATE, request)
            else:
                os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                raise  # all but: this file system cannot
        os.ftruncate(fd, size)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of it at ``offset``."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view[:_CHUNK], offset)
            view, offset = view[written:], offset + written

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        """Fill ``target`` (bytes) from ``offset`` on; fewer are read only at the file's end."""
        done = 0
        while done < len(target):
            read = os.preadv(fd, [target[done : done + _CHUNK]], offset + done)
            if not read:
                break
            done += read
        return done

    def fdatasync(self, fd: int) -> None:
        """Get the file's content out of this machine's RAM, before whatever is written later."""
        if sys.platform == "darwin":
            with contextlib.suppress(OSError):  # not every file system has it
                fcntl.fcntl(fd, _F_BARRIERFSYNC)
                return
            os.fsync(fd)
        else:
            os.fdatasync(fd)

    def full_sync(self, fd: int) -> None:
        """Put all that was synced before, on the drive of this file, on its medium."""
        if sys.platform == "darwin":
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, _F_FULLFSYNC)
                return
        os.fsync(fd)

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder as durable as ``fdatasync`` makes a file's content."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if it is taken."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file over whatever has the name."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a name; one that is gone already is no error."""
        path.unlink(missing_ok=True)

    def mkdir(self, path: Path) -> None:
        """Make one 0700 folder; FileExistsError if the name is taken."""
        path.mkdir(mode=0o700)

    def rmdir(self, path: Path) -> None:
        """Remove a folder that is empty; OSError if it is not."""
        path.rmdir()

    def restrict(self, path: Path) -> None:
        """Make a folder 0700."""
        path.chmod(0o700)

    def list(self, path: Path) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(os.listdir(path))

    def room(self, path: Path) -> tuple[int, int]:
        """Bytes that are free for us on the volume of a path, and all that it has."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def stat(self, path: Path) -> os.stat_result:
        """What the file system says of a name, links not followed."""
        return path.lstat()

    def fstat(self, fd: int) -> os.stat_result:
        """What the file system says of an open file."""
        return os.fstat(fd)


def on_disk(stat: os.stat_result) -> int:
    """Bytes that a file really takes."""
    return stat.st_blocks * 512
