"""Shared memory that only its maker can write, or that one peer may write too.

Two makers of one kind: memfd (Linux) and POSIX shared memory (macOS). A peer gets a
descriptor; the memory lives until the last map and descriptor of it are gone, so nothing is
ever unmapped under a view, and no name outlives a process that was killed.
"""

import contextlib
import ctypes
import fcntl
import importlib
import mmap
import os
import secrets
import sys
from collections.abc import Generator
from typing import Literal

import xxhash

SegmentKind = Literal["memfd", "posix"]
NATIVE: SegmentKind = "memfd" if sys.platform == "linux" else "posix"

_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; Python does not name it


class Segment:
    """A run of shared memory, mapped writable and faulted in.

    Attributes:
        view: all of it.
        address: of its first byte, valid as long as this object lives.
        peer_fd: what a peer is given; it cannot write through it unless the segment was made so.
    """

    def __init__(self, fd: int, peer_fd: int, size: int) -> None:
        self.size = size
        self.peer_fd = peer_fd
        self._fd = fd
        self._map = mmap.mmap(fd, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.view = memoryview(self._map)
        ctypes.memset(self.address, 0, size)  # faults it in, off the interpreter's lock

    def close_descriptors(self) -> None:
        """Give it to no further peer; maps and views go on."""
        for fd in {self._fd, self.peer_fd}:
            os.close(fd)


def create(size: int, *, writable: bool = False, kind: SegmentKind = NATIVE) -> Segment:
    """Make a segment; takes about 1 ms a MB.

    Args:
        size: a multiple of the page size.
        writable: whether peers may write.
        kind: how.

    Returns:
        The segment, whose descriptors the caller closes.

    Raises:
        OSError: there is no memory for it.
    """
    return _memfd(size, writable) if kind == "memfd" else _posix(size, writable)


def _memfd(size: int, writable: bool) -> Segment:
    fd = os.memfd_create("bramley", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with _closed_on_error(fd):
        os.posix_fallocate(fd, 0, size)  # or a machine without memory ends us with SIGBUS
        peer_fd = fd if writable else os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        segment = Segment(fd, peer_fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # a peer cannot cut it under us
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals if writable else seals | _F_SEAL_FUTURE_WRITE)
    return segment


def _posix(size: int, writable: bool) -> Segment:
    posix_ipc = importlib.import_module("posix_ipc")
    name = f"/bramley-{secrets.token_hex(8)}"  # macOS takes 30 characters
    fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=size).fd
    try:
        with _closed_on_error(fd):
            peer_fd = fd if writable else posix_ipc.SharedMemory(name, read_only=True).fd
            if sys.platform == "linux":
                os.posix_fallocate(fd, 0, size)
            return Segment(fd, peer_fd, size)
    finally:
        posix_ipc.unlink_shared_memory(name)


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Generator[None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def attach(fd: int, size: int, *, writable: bool) -> memoryview:
    """Map a segment that a peer made, and fault it in.

    Args:
        fd: from the peer; closed here.
        size: of the segment.
        writable: whether it is to be written.

    Returns:
        All of it; unmapped when the last view of it is gone.

    Raises:
        OSError: it cannot be mapped so.
    """
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        view = memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection))
    finally:
        os.close(fd)
    xxhash.xxh3_64_digest(view)  # reads all of it, off the interpreter's lock
    return view
