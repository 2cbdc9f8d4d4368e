"""Shared memory: what a peer may do with it, of either kind, and that it ends with its users."""

import gc
import mmap
import os
import sys
from pathlib import Path

import pytest

from bramley.cachestore.segments import SegmentKind, attach, create

KINDS: tuple[SegmentKind, ...] = ("memfd", "posix") if sys.platform == "linux" else ("posix",)
SIZE = 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_sees_what_the_maker_writes(kind: SegmentKind) -> None:
    segment = create(SIZE, kind=kind)
    view = attach(os.dup(segment.peer_fd), SIZE, writable=False)
    segment.view[5] = 7
    assert view[5] == 7
    assert view.readonly
    segment.close_descriptors()
    segment.view[6] = 8
    assert view[6] == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_cannot_write_what_it_may_only_read(kind: SegmentKind) -> None:
    segment = create(SIZE, kind=kind)
    with pytest.raises(PermissionError):
        mmap.mmap(segment.peer_fd, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(segment.peer_fd, 0)
    segment.close_descriptors()


@pytest.mark.parametrize("kind", KINDS)
def test_a_writable_segment_is_written_by_its_peer(kind: SegmentKind) -> None:
    segment = create(SIZE, writable=True, kind=kind)
    view = attach(os.dup(segment.peer_fd), SIZE, writable=True)
    view[9] = 3
    assert segment.view[9] == 3
    segment.close_descriptors()


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_a_peer_cannot_cut_staging_under_the_store() -> None:
    segment = create(SIZE, writable=True, kind="memfd")
    with pytest.raises(PermissionError):
        os.ftruncate(segment.peer_fd, 0)
    segment.close_descriptors()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_a_map_lasts_as_long_as_a_view_of_it(kind: SegmentKind) -> None:
    segment = create(SIZE, kind=kind)
    fd = os.dup(segment.peer_fd)
    segment.close_descriptors()
    view = attach(fd, SIZE, writable=False)[16:32]
    del segment
    gc.collect()
    assert bytes(view) == bytes(16)
    before = mapped(kind)
    del view
    gc.collect()
    assert mapped(kind) == before - 1


def mapped(kind: SegmentKind) -> int:
    name = "/memfd:bramley" if kind == "memfd" else "/dev/shm/bramley-"  # noqa: S108
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_no_name_is_left_behind() -> None:
    before = set(Path("/dev/shm").glob("bramley-*"))  # noqa: S108
    segment = create(SIZE, kind="posix")
    assert set(Path("/dev/shm").glob("bramley-*")) == before  # noqa: S108
    segment.close_descriptors()
