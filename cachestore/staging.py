"""A worker's own staging: where it lays payloads that it hands over. Any thread may use it."""

import threading
from typing import Self

from bramley.cachestore.arena import FreeList
from bramley.cachestore.objects import padded


class Staged:
    """A piece of staging, to be filled and published, or released.

    Attributes:
        view: its bytes; as many as asked for, rounded up to ALIGN.
        offset: in the staging.
        staging: that it belongs to.
        is_released: under the staging's lock.
    """

    def __init__(self, staging: "Staging", offset: int, size: int) -> None:
        self.staging = staging
        self.offset = offset
        self.view = staging.view[offset : offset + size]
        self.is_released = False

    def release(self) -> None:
        """Give the room back; more than once does no harm."""
        self.staging.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Staging:
    """All of it.

    Attributes:
        view: its bytes.
        segment_id: as the store knows it; 0 for private memory.
    """

    def __init__(self, view: memoryview, segment_id: int) -> None:
        self.view = view
        self.segment_id = segment_id
        self._free = FreeList(len(view))
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Staged | None:
        """Take a piece; None if there is no room now."""
        size = padded(nbytes)
        with self._lock:
            offset = self._free.allocate(size)
        return None if offset is None else Staged(self, offset, size)

    def release(self, staged: Staged) -> None:
        """Give a piece back; more than once does no harm."""
        with self._lock:
            if not staged.is_released:
                staged.is_released = True
                self._free.free(staged.offset, len(staged.view))
