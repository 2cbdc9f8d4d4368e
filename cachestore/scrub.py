"""Proves in idle time what lies on the disk, object by object, and begins anew each day.

It gives way to whatever is asked of the store, never reads faster than it is told to, and goes on
after a restart where it was. A damaged object is quarantined, and a miss at once.
"""

import asyncio
import logging
import time
from bisect import bisect
from time import monotonic

from bramley.cachestore.catalogue import Entry
from bramley.cachestore.disk import Disk
from bramley.cachestore.objects import padded
from bramley.cachestore.tiers import Tiers
from bramley.common.errors import Overloaded
from bramley.common.logs import facts

log = logging.getLogger(__name__)

QUIET_S = 1.0  # without a request, until the store counts as idle
LOOK_S = 0.5
GONE_S = 60.0  # between two looks at a disk whose folder is not there
ROUND_S = 86_400.0  # from one round's end to the next one's start
NOTE_S = 10.0


class Scrubber:
    """One store's.

    Args:
        tiers: of the store.
        disk: what is proved.
        rate: bytes a second, at most.

    Attributes:
        round_s: when the last whole round ended, on the wall clock; 0 if none has.
    """

    def __init__(self, tiers: Tiers, disk: Disk, rate: int) -> None:
        self._tiers = tiers
        self._disk = disk
        self._rate = rate
        self._after, round_s = disk.scrubbed()
        self.round_s = round_s if 0 <= round_s <= time.time() else 0.0  # by a clock that was wrong
        self._noted_s = monotonic()

    async def run(self) -> None:
        """Scrub until cancelled."""
        while True:
            await asyncio.sleep(max(0.0, self.round_s + ROUND_S - time.time()))
            await self._round()

    async def _round(self) -> None:
        """Prove the rest of a round."""
        catalogue = self._tiers.catalogue
        ids = [object_id for object_id in catalogue.ids if object_id in catalogue.disk]
        for object_id in ids[bisect(ids, self._after) :]:
            entry = catalogue.entries.get(object_id)
            if entry is not None:
                await self._prove(entry)
                self._after = object_id
                if monotonic() - self._noted_s >= NOTE_S:
                    self._note()
        self._after, self.round_s = "", time.time()
        self._note()
        log.info("scrubbed", extra=facts(objects=len(ids)))

    async def _prove(self, entry: Entry) -> None:
        entry.holds += 1
        try:
            await self._idle()
            if not await self._tiers.prove_header(entry):
                self._tiers.counts["scrub_corrupt"] += not (entry.on_disk or entry.was_missing)
                return
            for number, part in enumerate(entry.object.parts):
                await self._idle()
                if not entry.on_disk:
                    return
                started_s, size = monotonic(), padded(part.nbytes)
                if not await self._tiers.prove_part(entry, number):
                    self._tiers.counts["scrub_corrupt"] += not (entry.on_disk or entry.was_missing)
                    return
                self._tiers.counts["scrubbed_bytes"] += size
                await asyncio.sleep(max(0.0, size / self._rate - (monotonic() - started_s)))
        except Overloaded as late:  # the next round will try it again
            log.warning("not scrubbed", extra=facts(object=entry.id, error=late))
            if not self._tiers.has_folder:
                await asyncio.sleep(GONE_S)
        finally:
            entry.holds -= 1
            self._tiers.free_retired()

    async def _idle(self) -> None:
        while not self._tiers.is_idle(QUIET_S):  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(LOOK_S)

    def _note(self) -> None:
        self._noted_s = monotonic()
        if not self._tiers.writes.is_stuck:
            self._tiers.writes.start(self._disk.note_scrub, self._after, self.round_s)
