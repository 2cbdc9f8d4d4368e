"""Writes sealed objects to the disk, oldest first, under its budget; keeps off it when it fails.

Parents are sealed before their children and so are written before them.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from bramley.cachestore.catalogue import Entry, Place
from bramley.cachestore.disk import Disk, DiskFull, FolderGone
from bramley.cachestore.format import file_bytes
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.points import Points
from bramley.cachestore.policy import HIGH, LOW, Breaker, shortage
from bramley.cachestore.threads import Late, Work
from bramley.cachestore.tiers import Tiers
from bramley.common.logs import facts

log = logging.getLogger(__name__)

WRITE_WAIT_S = 10.0  # what a write is given, beside its time at the slowest rate
SLOWEST_RATE = 20e6  # bytes a second
WRITE_TRIES = 3  # of an object on a sick disk
TRIM = 8  # objects that leave between two writes, where nothing waits for their room
TRIM_AGAIN_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """What the disk may be filled with.

    Attributes:
        budget: bytes that the folder may take.
        floor: bytes to be left free on its volume.
    """

    budget: int
    floor: int = 0


class Spiller:
    """The one writer of the disk.

    Args:
        tiers: of the store.
        disk: the SSD tier.
        bounds: of its room.
        namespaces: that are open, by root.
        points: where tests have the store die.

    Attributes:
        breaker: open while the disk is full or sick.
    """

    def __init__(
        self,
        tiers: Tiers,
        disk: Disk,
        bounds: Bounds,
        namespaces: Mapping[bytes, Namespace],
        points: Points,
    ) -> None:
        self.breaker = Breaker()
        self.budget = bounds.budget
        self._floor = bounds.floor
        self._tiers = tiers
        self._disk = disk
        self._namespaces = namespaces
        self._points = points
        self._failures: dict[str, int] = {}
        self._has_ended = False
        self._is_used = False
        self._is_trimming = False
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        tiers.wake = self._work.set

    def wake(self) -> None:
        """There is something to write, or the store is used for the first time."""
        self._is_used = True
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                await self._go_on()
        finally:
            self._has_ended = True
            self._note_progress()

    async def _go_on(self) -> None:
        self._work.clear()  # before looking: what comes while room is made is not overlooked
        entry = next(iter(self._tiers.pending.values()), None)
        wait_s = self.breaker.remaining_s(monotonic())
        if entry is not None and not wait_s:
            await self._spill(entry)
            self._note_progress()
        elif not await self._trim():
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        self._note_progress()
        if self._is_trimming:
            wait_s = min(wait_s or TRIM_AGAIN_S, TRIM_AGAIN_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s or None):
                await self._work.wait()

    async def until_written(self, entries: Sequence[Entry]) -> None:
        """Wait until none of them is pending, the disk takes nothing, or nobody writes any more."""
        while not self._has_ended and any(entry.id in self._tiers.pending for entry in entries):
            is_open = self.breaker.remaining_s(monotonic()) > 0
            if self.breaker.has_tripped and (is_open or self._tiers.writes.is_stuck):
                return
            await self._progress.wait()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    # Writing

    async def _spill(self, entry: Entry) -> None:
        if self._parent_waits(entry):
            self._tiers.pending.move_to_end(entry.id)  # both have lost their files
            return
        if not self._has_parent(entry) or file_bytes(entry.object) > self.budget:
            self._tiers.settle(entry, "failed")
            return
        entry.holds += 1
        try:
            self._points.reach("spill.begin")
            self._points.is_committing = True
            await self._write(entry)
            self._points.reach("spill.written")
        except OSError as error:
            if not self._may_try_again(entry, error):
                self._tiers.settle(entry, "failed")
            self._trip(error)
        else:
            self._written(entry)
        finally:
            self._points.is_committing = False
            entry.holds -= 1
            self._tiers.free_retired()

    def _has_parent(self, entry: Entry) -> bool:
        return all(place is not None and place.entry.on_disk for place in self._parents(entry))

    def _parent_waits(self, entry: Entry) -> bool:
        pending = self._tiers.pending
        return any(
            place is not None and place.entry.id in pending for place in self._parents(entry)
        )

    def _parents(self, entry: Entry) -> Sequence[Place | None]:
        stored = entry.object
        namespace = self._namespaces.get(stored.root)
        if stored.parent == stored.root or namespace is None:
            return ()
        groups = namespace.parent_groups(stored.group)
        return [self._tiers.catalogue.block(group, stored.parent) for group in groups]

    def _may_try_again(self, entry: Entry, error: OSError) -> bool:
        """Whether it waits for the next try: for room it does, for a sick disk so often."""
        if isinstance(error, DiskFull | FolderGone):
            return True
        tries = self._failures.get(entry.id, 0) + 1
        self._failures = {entry.id: tries}  # the first one that waits is the only one tried
        return error.errno == errno.EIO and tries < WRITE_TRIES

    async def _write(self, entry: Entry) -> None:
        await self._make_room(file_bytes(entry.object))
        try:
            await self._put(entry)
        except DiskFull:
            share = int((1 - LOW) * self._tiers.catalogue.disk_bytes)
            if not await self._remove(max(entry.object.payload_bytes, share)):
                raise
            await self._put(entry)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            await self._put(entry)

    async def _put(self, entry: Entry) -> None:
        if entry.run is None:
            return  # it was found damaged while room was made, and is no object any more
        size = entry.object.payload_bytes
        payload = self._tiers.memory.view(entry.run)[:size]
        await self._on_disk(size, self._disk.write, entry.object, payload)

    async def _on_disk(self, size: int, call: Callable[..., T], *arguments: object) -> T:
        return await self._patiently(self._tiers.writes.start(call, *arguments), size)

    async def _patiently(self, work: Work[T], size: int) -> T:
        """Wait for the disk to its end, but tell others when that takes too long."""
        try:
            return await work.within(WRITE_WAIT_S + size / SLOWEST_RATE, cancel=False)
        except Late as late:
            self._trip(late)
            self._note_progress()
        return await work.whole()

    def _written(self, entry: Entry) -> None:
        self.breaker.close()
        self._failures.clear()
        self._tiers.is_disk_failing = False
        if entry.id not in self._tiers.catalogue.entries:  # discarded meanwhile
            self._tiers.remove_file(entry.id)
            return
        self._tiers.catalogue.came_to_disk(entry)
        self._tiers.settle(entry, "spilled")
        self._tiers.counts["written_bytes"] += entry.object.payload_bytes
        self._tiers.events.add(entry.object, "ssd")
        self._tiers.supersede_tails(entry, on_disk=True)

    def _trip(self, error: OSError) -> None:
        now_s = monotonic()
        self.breaker.trip(now_s, is_full=isinstance(error, DiskFull))
        self._tiers.is_disk_failing = True
        self._tiers.counts["breaker_trips"] += 1
        wait_s = round(self.breaker.remaining_s(now_s))
        log.warning(
            "the disk takes nothing",
            extra=facts(error=error, errno=error.errno, next_try_s=wait_s),
        )

    # Making room

    async def _trim(self) -> bool:
        """Make room ahead of need, a few objects at a time.

        Nothing goes before the store is used: who starts it with less room may think again.

        Returns:
            Whether there is more to do.
        """
        if not self._is_used or (self.breaker.has_tripped and not self.breaker.is_full):
            return False
        used, goal = self._disk.used_bytes, int(LOW * self.budget)
        self._is_trimming = used > (goal if self._is_trimming else int(HIGH * self.budget))
        if not self._is_trimming:
            return False
        try:
            for _ in range(TRIM):
                if self._disk.used_bytes <= goal or not await self._evict_one():
                    return False
        except OSError as error:
            self._trip(error)
            return False
        return True

    async def _make_room(self, size: int) -> None:
        """Have room for ``size`` bytes in the budget, and on the volume.

        Raises:
            DiskFull: it cannot be made.
            OSError: the disk failed.
        """
        missing = await self._missing(size)
        can_go = missing <= self._tiers.catalogue.disk_bytes  # or else none goes in vain
        while missing and can_go:
            can_go = bool(await self._evict_one())
            missing = await self._missing(size)
        if missing:
            raise DiskFull(errno.ENOSPC, f"{missing} bytes are missing, and nothing can go")

    async def could_hold(self, size: int) -> bool:
        """Whether there is room for ``size`` bytes, or can be made; so too if nothing tells now."""
        if self._tiers.writes.is_stuck:
            return True
        try:
            return await self._missing(size) <= self._tiers.catalogue.disk_bytes
        except OSError:
            return True

    async def _missing(self, size: int) -> int:
        free, _ = await self._on_disk(0, self._disk.room)
        return shortage(size, self._disk.used_bytes, self.budget, free, self._floor)

    async def _remove(self, size: int) -> bool:
        """Remove files of ``size`` bytes at least; False if fewer could go."""
        if size > self._tiers.catalogue.disk_bytes:
            return False  # and so none goes in vain
        while size > 0:
            freed = await self._evict_one()
            if not freed:
                return False
            size -= freed
        return True

    async def _evict_one(self) -> int:
        """Remove whoever leaves first.

        Returns:
            Its bytes, 0 if nobody can go.

        Raises:
            OSError: its file stays, and so do its bytes: others would go in vain.
        """
        tiers = self._tiers
        victim = tiers.order.disk_victim(tiers.is_free)
        if victim is None:
            return 0
        removal = tiers.discard(victim, "failed")
        tiers.counts["evicted_from_disk"] += 1
        if removal is not None:
            await self._patiently(removal, 0)
        return victim.object.payload_bytes
