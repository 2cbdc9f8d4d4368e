"""Writes sealed objects to the disk, oldest first, under its budget; keeps off it when it fails.

Parents are sealed before their children and so are written before them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from time import monotonic

from bramley.cachestore.catalogue import Entry
from bramley.cachestore.disk import Disk, DiskFull
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.points import Points
from bramley.cachestore.policy import Breaker
from bramley.cachestore.tiers import Tiers
from bramley.common.logs import facts

log = logging.getLogger(__name__)


class Spiller:
    """The one writer of the disk.

    Args:
        tiers: of the store.
        disk: the SSD tier.
        budget: bytes that its folder may take.
        namespaces: that are open, by root.
        points: where tests have the store die.

    Attributes:
        breaker: open while the disk is full or sick.
    """

    def __init__(
        self,
        tiers: Tiers,
        disk: Disk,
        budget: int,
        namespaces: Mapping[bytes, Namespace],
        points: Points,
    ) -> None:
        self.breaker = Breaker()
        self.budget = budget
        self._tiers = tiers
        self._disk = disk
        self._namespaces = namespaces
        self._points = points
        self._work = asyncio.Event()
        self._progress = asyncio.Event()

    def wake(self) -> None:
        """There is something to write."""
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            entry = next(iter(self._tiers.pending.values()), None)
            wait_s = self.breaker.remaining_s(monotonic())
            if entry is None or wait_s:
                self._work.clear()
                self._note_progress()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s or None):
                        await self._work.wait()
                if self.breaker.remaining_s(monotonic()) == 0:
                    self._tiers.is_disk_failing = False
            else:
                await self._spill(entry)
                self._note_progress()

    async def until_written(self, entries: Sequence[Entry]) -> None:
        """Wait until none of them is pending, or the disk takes nothing."""
        pending = self._tiers.pending
        while any(e.id in pending for e in entries) and not self.breaker.has_tripped:
            await self._progress.wait()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _spill(self, entry: Entry) -> None:
        if not self._has_parent(entry):
            self._tiers.settle(entry, "failed")
            return
        entry.holds += 1
        try:
            self._points.reach("spill.begin")
            self._points.is_committing = True
            await self._write(entry)
            self._points.reach("spill.written")
        except DiskFull as error:
            self._trip(error)
        except OSError as error:
            self._tiers.settle(entry, "failed")
            self._trip(error)
        else:
            self._written(entry)
        finally:
            self._points.is_committing = False
            entry.holds -= 1
            self._tiers.free_retired()

    def _has_parent(self, entry: Entry) -> bool:
        stored = entry.object
        namespace = self._namespaces[stored.root]
        groups = namespace.parent_groups(stored.group)
        if stored.parent == stored.root or not groups:
            return True
        places = [self._tiers.catalogue.block(group, stored.parent) for group in groups]
        return all(place is not None and place.entry.on_disk for place in places)

    async def _write(self, entry: Entry) -> None:
        assert entry.run is not None, "a pending object left RAM"
        size = entry.object.payload_bytes
        payload = self._tiers.memory.view(entry.run)[:size]
        if not await self._make_room(size):
            raise DiskFull("over the budget, and nothing can go")
        try:
            await self._tiers.on_disk_thread(self._disk.write, entry.object, payload)
        except DiskFull:
            if not await self._remove(size):
                raise
            await self._tiers.on_disk_thread(self._disk.write, entry.object, payload)

    def _written(self, entry: Entry) -> None:
        self.breaker.close()
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
        self.breaker.trip(now_s)
        self._tiers.is_disk_failing = True
        self._tiers.counts["breaker_trips"] += 1
        wait_s = round(self.breaker.remaining_s(now_s))
        log.warning("the disk takes nothing", extra=facts(error=error, next_try_s=wait_s))

    async def _make_room(self, size: int) -> bool:
        over = self._disk.used_bytes + size - self.budget
        return over <= 0 or await self._remove(over)

    async def _remove(self, size: int) -> bool:
        """Remove files of ``size`` bytes at least; False if fewer could go."""
        if size > self._tiers.catalogue.disk_bytes:
            return False  # and so none goes in vain
        while size > 0:
            tiers = self._tiers
            victim = tiers.order.disk_victim(tiers.is_free)
            if victim is None:
                return False
            removal = self._tiers.discard(victim, "failed")
            self._tiers.counts["evicted_from_disk"] += 1
            size -= victim.object.payload_bytes
            if removal is not None:
                await asyncio.wait([removal])
        return True
