"""Which bytes of which segments are in use: first fit, in steps of ALIGN, under one budget."""

import bisect

import msgspec

from bramley.cachestore.objects import ALIGN, padded

SEGMENT_BYTES = 64 << 20


class Run(msgspec.Struct, frozen=True):
    """A piece of a segment."""

    segment_id: int
    offset: int
    size: int


class FreeList:
    """The free runs of one segment, in order, none touching the next.

    Attributes:
        size: of the segment.
        free_bytes: of it that are free.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = size
        self._offsets = [0]
        self._sizes = [size]

    def allocate(self, size: int) -> int | None:
        """Take the first run that is large enough: its offset."""
        for at, free in enumerate(self._sizes):
            if free < size:
                continue
            offset = self._offsets[at]
            if free == size:
                del self._offsets[at], self._sizes[at]
            else:
                self._offsets[at] += size
                self._sizes[at] -= size
            self.free_bytes -= size
            return offset
        return None

    def free(self, offset: int, size: int) -> None:
        """Give a run back."""
        at = bisect.bisect(self._offsets, offset)
        self._offsets.insert(at, offset)
        self._sizes.insert(at, size)
        self.free_bytes += size
        self._join(at)
        self._join(at - 1)

    def _join(self, at: int) -> None:
        if at < 0 or at + 1 >= len(self._offsets):
            return
        end = self._offsets[at] + self._sizes[at]
        assert end <= self._offsets[at + 1], "a run was freed twice"
        if end == self._offsets[at + 1]:
            self._sizes[at] += self._sizes[at + 1]
            del self._offsets[at + 1], self._sizes[at + 1]


class Arena:
    """The segments of a RAM tier.

    Attributes:
        budget: bytes that the segments may have together.
        total_bytes: of all segments.
        used_bytes: of all runs in use.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.total_bytes = 0
        self.used_bytes = 0
        self._segments: dict[int, FreeList] = {}
        self._used: dict[tuple[int, int], int] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes of the segments that are not in use."""
        return self.total_bytes - self.used_bytes

    def allocate(self, size: int) -> Run | None:
        """Take a run of at least ``size`` bytes from the segments there are."""
        size = padded(size)
        for segment_id, free_list in self._segments.items():
            if free_list.free_bytes < size:
                continue
            offset = free_list.allocate(size)
            if offset is not None:
                self._used[segment_id, offset] = size
                self.used_bytes += size
                return Run(segment_id, offset, size)
        return None

    def growth(self, size: int) -> int:
        """How large a further segment for ``size`` bytes is to be; 0 if the budget allows none."""
        size, room = padded(size), self.budget - self.total_bytes
        if size > room:
            return 0
        return max(size, min(SEGMENT_BYTES, room // ALIGN * ALIGN))

    def add(self, segment_id: int, size: int) -> None:
        """Take in a new segment."""
        self._segments[segment_id] = FreeList(size)
        self.total_bytes += size

    def idle(self) -> list[int]:
        """Name the segments of which nothing is in use."""
        return [name for name, one in self._segments.items() if one.free_bytes == one.size]

    def remove(self, segment_id: int) -> None:
        """Forget an idle segment."""
        assert self._segments[segment_id].free_bytes == self._segments[segment_id].size
        self.total_bytes -= self._segments.pop(segment_id).size

    def free(self, run: Run) -> None:
        """Give a run back."""
        size = self._used.pop((run.segment_id, run.offset))
        assert size == run.size
        self.used_bytes -= size
        self._segments[run.segment_id].free(run.offset, size)

    def check(self) -> None:
        """Check that free and used make the whole.

        Raises:
            AssertionError: they do not: a run is lost or given twice.
        """
        free = sum(one.free_bytes for one in self._segments.values())
        assert self.used_bytes == sum(self._used.values()), "used bytes are miscounted"
        assert free + self.used_bytes == self.total_bytes, "free and used are not the whole"
        assert self.total_bytes <= self.budget, "the segments are over the budget"
