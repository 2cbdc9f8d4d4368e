"""The RAM tier: an arena over shared memory that grows as it is filled, within its budget."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from bramley.cachestore.arena import SEGMENT_BYTES, Arena, Run
from bramley.cachestore.segments import NATIVE, Segment, SegmentKind, create
from bramley.common.logs import facts

log = logging.getLogger(__name__)


class Memory:
    """Runs of shared memory.

    Args:
        budget: bytes of all segments.
        make_room: frees some run, or says False if it cannot.
        kind: of the segments.

    Attributes:
        arena: what is in use.
        segments: by id; ids are never used again.
        changed: told of each segment that came or went.
    """

    def __init__(
        self, budget: int, make_room: Callable[[], bool], kind: SegmentKind = NATIVE
    ) -> None:
        self.arena = Arena(budget)
        self.segments: dict[int, Segment] = {}
        self.changed: Callable[[int], None] = lambda _: None
        self._make_room = make_room
        self._kind: SegmentKind = kind
        self._last_id = 0
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ahead.set_result(None)

    def next_id(self) -> int:
        """An id for a segment."""
        self._last_id += 1
        return self._last_id

    async def take(self, size: int) -> Run | None:
        """Take a run, of new memory or of what others can do without; None if there is none."""
        run = self.arena.allocate(size)
        if run is None:
            async with self._lock:
                run = await self._take(size)
        if self.arena.free_bytes < SEGMENT_BYTES // 2 and self._ahead.done():
            self._ahead = asyncio.create_task(self._grow_ahead())
        return run

    async def _take(self, size: int) -> Run | None:
        while True:
            run = self.arena.allocate(size)
            if run is not None:
                return run
            if not (await self._grow(size) or self._drop_idle(size) or self._make_room()):
                return None

    async def _grow_ahead(self) -> None:
        """Have the next segment at hand: faulting it in takes longer than filling it."""
        async with self._lock:
            if self.arena.free_bytes < SEGMENT_BYTES // 2:
                await self._grow(1)

    def give(self, run: Run) -> None:
        """Give a run back."""
        self.arena.free(run)

    def view(self, run: Run) -> memoryview:
        """The bytes of a run."""
        return self.segments[run.segment_id].view[run.offset : run.offset + run.size]

    def address(self, run: Run) -> int:
        """Where a run lies."""
        return self.segments[run.segment_id].address + run.offset

    def close(self) -> None:
        """Give up all segments."""
        self._ahead.cancel()
        for segment in self.segments.values():
            segment.close_descriptors()
        self.segments.clear()

    async def _grow(self, size: int) -> bool:
        growth = self.arena.growth(size)
        if not growth:
            return False
        try:
            segment = await asyncio.to_thread(partial(create, growth, kind=self._kind))
        except OSError as error:
            log.warning("no more memory", extra=facts(error=error, bytes=self.arena.total_bytes))
            return False
        segment_id = self.next_id()
        self.segments[segment_id] = segment
        self.arena.add(segment_id, growth)
        self.changed(segment_id)
        return True

    def _drop_idle(self, size: int) -> bool:
        """Drop segments that are idle and too small, where that makes room for a larger one."""
        idle = self.arena.idle()
        idle_bytes = sum(self.segments[name].size for name in idle)
        if not idle or self.arena.total_bytes - idle_bytes + size > self.arena.budget:
            return False
        for name in idle:
            self.arena.remove(name)
            self.segments.pop(name).close_descriptors()
            self.changed(name)
        return True
