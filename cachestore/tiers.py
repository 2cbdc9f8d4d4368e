"""The two tiers together: what is where, how it moves between them, how it leaves.

All state belongs to the event loop; threads only move bytes that are held for them.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from bramley.cachestore.arena import Run
from bramley.cachestore.catalogue import Catalogue, Entry, Fate
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.disk import Disk, FolderGone
from bramley.cachestore.events import Events
from bramley.cachestore.eviction import Order
from bramley.cachestore.format import Damaged
from bramley.cachestore.leases import Leases
from bramley.cachestore.memory import Memory
from bramley.cachestore.objects import ALIGN, padded
from bramley.cachestore.segments import NATIVE, SegmentKind
from bramley.cachestore.sessions import Sessions
from bramley.cachestore.threads import Lane, Late, Work
from bramley.common.errors import Overloaded, UnknownResource
from bramley.common.logs import facts

log = logging.getLogger(__name__)

READERS = 2  # threads that read the disk
READ_TRIES = 3  # of a file that the disk does not give, until it is not offered any more
READ_WAIT_S = 2.0  # what a read is given, beside the time at the slowest rate of all that is read
SLOWEST_RATE = 100e6  # bytes a second
CLOSE_S = 5.0
SMOOTHING = 0.2  # share of the newest measurement
T = TypeVar("T")


class Tiers:
    """RAM and disk.

    Args:
        ram_bytes: of the RAM tier.
        disk: None where there is no SSD tier.
        leases: say what readers hold.
        kind: of shared memory.

    Attributes:
        catalogue: of all that is in either tier.
        sessions: those that are open.
        order: who leaves first.
        memory: the RAM tier's bytes.
        pending: sealed objects without a file, oldest first.
        pending_bytes: of them.
        counts: of what happened, by name.
        failed: objects of each namespace that never came to the disk, since its last flush.
        events: for the router.
        is_disk_failing: whether writing is suspended; set by the spiller.
        has_folder: whether the disk's folder was there when it was last read.
        wake: calls the spiller to what is pending.
        asked_s: when a worker last asked for something.
        reads: the threads that read the disk.
        writes: the one that changes it.
        ssd_rate: bytes a second, as measured lately.
    """

    def __init__(
        self, ram_bytes: int, disk: Disk | None, leases: Leases, kind: SegmentKind = NATIVE
    ) -> None:
        self.catalogue = Catalogue()
        self.sessions = Sessions()
        self.order = Order(self.catalogue, self.sessions.rank)
        self.sessions.watch = self.order.update_all
        self.sessions.watch_all = self._session_changed
        self.memory = Memory(ram_bytes, self._make_room, kind)
        self.disk = disk
        self.leases = leases
        self.pending: OrderedDict[str, Entry] = OrderedDict()
        self.pending_bytes = 0
        self.counts: Counter[str] = Counter()
        self.failed: Counter[bytes] = Counter()
        self.events = Events()
        self.is_disk_failing = False
        self.has_folder = True
        self.wake: Callable[[], None] = lambda: None
        self.asked_s = 0.0
        self.ssd_rate = 1e9
        self._retired: list[tuple[Entry, Run]] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()  # objects that a thread still reads, for nobody
        self._reading_bytes = 0
        self.writes = Lane(1, "disk-writer")
        self.reads = Lane(READERS, "disk-reader")

    def recover(self) -> None:
        """Take in what the disk holds."""
        if self.disk is None:
            return
        stored = self.disk.objects()
        self.order.fill(stored, self.disk.last_used())
        for one in stored:
            self.events.add(one, "ssd")

    def is_idle(self, quiet_s: float) -> bool:
        """Whether nothing is under way, and nothing was asked for so long."""
        is_busy = self.pending or not (self.reads.is_idle and self.writes.is_idle)
        return not is_busy and monotonic() - self.asked_s >= quiet_s

    def hold(self, entry: Entry, run: Run, now_s: float) -> None:
        """Take in a sealed object, and let it wait for the disk."""
        self.catalogue.add(entry)
        self.order.used(entry, now_s)
        self.catalogue.came_to_ram(entry, run)
        self.pending[entry.id] = entry
        self.pending_bytes += entry.object.payload_bytes
        self.counts["sealed"] += 1
        self.events.add(entry.object, "ram")

    def settle(self, entry: Entry, fate: Fate) -> None:
        """Note how a sealed object's way to the disk ended; the first end counts."""
        if self.pending.pop(entry.id, None) is not None:
            self.pending_bytes -= entry.object.payload_bytes
            entry.fate = fate
            self.counts[fate] += 1
            self.order.update_all([entry.id])
            if fate == "failed":
                self.failed[entry.object.root] += 1

    def supersede_tails(self, entry: Entry, *, on_disk: bool) -> None:
        """Discard the tails that an object covers and nobody needs.

        Args:
            entry: of the object.
            on_disk: those that have a file, since it has one too; or else those that have none.
        """
        for tail in self.catalogue.covered_tails(entry.object):
            if tail.on_disk == on_disk and not self.is_needed(tail):
                self.discard(tail, "superseded")

    def discard(self, entry: Entry, fate: Fate) -> Work[None] | None:
        """Forget an object in both tiers.

        Args:
            entry: of the object; a reader that holds it reads on.
            fate: if it never came to the disk.

        Returns:
            The removal of its file, if it has one.
        """
        assert self.disk is not None or not entry.on_disk
        removal = None
        if entry.on_disk and self.disk is not None:
            removal = self.remove_file(entry.id)
        self._forget(entry, fate)
        return removal

    def quarantine(self, entry: Entry) -> None:
        """Put a damaged object where nobody is served from."""
        log.warning("damaged", extra=facts(object=entry.id, tokens=entry.object.tokens))
        self.counts["corrupt"] += 1
        if entry.on_disk and self.disk is not None:
            self.writes.start(self.disk.quarantine, entry.id)
        self._forget(entry, "failed")

    def _forget(self, entry: Entry, fate: Fate) -> None:
        self.settle(entry, fate)
        run = self.catalogue.left_ram(entry)
        self.catalogue.remove(entry)
        if run is not None:
            self._retired.append((entry, run))
            self.free_retired()
        self.events.add(entry.object, None)

    def free_retired(self) -> None:
        """Give back the runs of forgotten objects that nobody holds any more."""
        if not self._retired:
            return
        kept: list[tuple[Entry, Run]] = []
        for entry, run in self._retired:
            if entry.holds or self.leases.is_pinned(entry.id):
                kept.append((entry, run))
            else:
                self.memory.give(run)
        self._retired = kept

    def drop_from_ram(self, entry: Entry) -> None:
        """Drop the RAM copy of an object on disk that nobody holds."""
        run = self.catalogue.left_ram(entry)
        assert run is not None
        self.memory.give(run)
        self.counts["dropped_from_ram"] += 1

    async def bring_to_ram(self, entry: Entry) -> None:
        """Have an object's bytes in RAM; the caller holds it by a lease.

        Raises:
            Overloaded: there is no room for it, the disk does not answer in time, or it has gone.
            UnknownResource: it turned out to be damaged, or was discarded.
        """
        while entry.run is None:
            loading = self._loading.get(entry.id)
            if loading is None:
                loading = asyncio.create_task(self._load(entry))
                self._loading[entry.id] = loading
                loading.add_done_callback(lambda _: self._loading.pop(entry.id))
            await asyncio.shield(loading)

    async def _load(self, entry: Entry) -> None:
        stored = entry.object
        if self.disk is None or not entry.on_disk:
            raise UnknownResource("object", entry.id)
        if self.reads.is_stuck or entry.id in self._late:
            raise self._late_read()
        run = await self.memory.take(stored.payload_bytes)
        if run is None:
            raise Overloaded("no room in RAM", reason="RAM_FULL", retry_after_s=1.0)
        entry.holds += 1
        try:
            await self._read(entry, run)
        except Late as late:
            raise self._late_read() from late
        except FolderGone as gone:
            raise self._folder_gone(gone) from gone
        except OSError as error:
            await self._read_failed(entry, error)
            raise UnknownResource("object", entry.id) from error
        finally:
            entry.holds -= 1
            self.free_retired()
        self.has_folder = True
        if entry.id not in self.catalogue.entries:
            self.memory.give(run)
            raise UnknownResource("object", entry.id)
        entry.failed_reads = 0
        self.catalogue.came_to_ram(entry, run)
        self.counts["loaded"] += 1
        self.events.add(stored, "ram")

    async def _read(self, entry: Entry, run: Run) -> None:
        """Read an object into a run; if that fails, the run is given back once it is over."""
        assert self.disk is not None
        size, last = entry.object.payload_bytes, len(entry.object.parts) - 1
        target = self.memory.view(run)[:size]
        started_s = monotonic()
        work = self.reads.start(self.disk.read_into, entry.id, 0, last, target)
        self._reading_bytes += size
        try:
            await work.within(READ_WAIT_S + self._reading_bytes / SLOWEST_RATE)
        except BaseException:
            self._late.add(entry.id)
            work.when_ended(partial(self._read_ended, entry.id, run))
            raise
        finally:
            self._reading_bytes -= size
        rate = size / max(monotonic() - started_s, 1e-6)
        self.ssd_rate += SMOOTHING * (rate - self.ssd_rate)

    def _read_ended(self, object_id: str, run: Run) -> None:
        self._late.discard(object_id)
        self.memory.give(run)

    def _late_read(self) -> Overloaded:
        self.counts["late_reads"] += 1
        return Overloaded("the disk does not answer", reason="DISK_LATE", retry_after_s=1.0)

    def _folder_gone(self, gone: FolderGone) -> Overloaded:
        if self.has_folder:
            log.warning("the disk tier has gone", extra=facts(error=gone))
        self.has_folder = False
        return Overloaded("the disk tier's folder is not there", reason="DISK_GONE")

    async def _read_failed(self, entry: Entry, error: OSError) -> None:
        """Use a file no more that is damaged, missing, or that the disk does not give ever.

        What is whole in RAM is written again; the caller holds or leases it.
        """
        log.warning("unreadable", extra=facts(object=entry.id, error=error))
        entry.failed_reads += 1
        is_missing = isinstance(error, FileNotFoundError)
        is_lost = is_missing or isinstance(error, Damaged) or entry.failed_reads >= READ_TRIES
        if not is_lost:
            return
        is_whole = await self.is_whole_in_ram(entry)
        if not entry.on_disk:
            return  # it left meanwhile, or another one found out
        entry.was_missing = is_missing
        self.counts["missing_files"] += is_missing
        if is_whole:
            self.counts["corrupt"] += not is_missing
            self._write_again(entry)
        elif is_missing:
            self.discard(entry, "failed")
        else:
            self.quarantine(entry)

    async def is_whole_in_ram(self, entry: Entry) -> bool:
        """Prove an object's bytes in RAM; False if they are not there."""
        if entry.run is None:
            return False
        parts = entry.object.parts
        sizes = [part.nbytes for part in parts]
        sums = await asyncio.to_thread(checksums_of, self.memory.view(entry.run), sizes)
        return sums == [part.checksum for part in parts]

    def _write_again(self, entry: Entry) -> None:
        """Let an object that has lost its file wait for the disk once more."""
        assert self.disk is not None
        self.writes.start(self.disk.remove if entry.was_missing else self.disk.quarantine, entry.id)
        self.catalogue.left_disk(entry)
        entry.failed_reads, entry.fate = 0, "pending"
        self.pending[entry.id] = entry
        self.pending_bytes += entry.object.payload_bytes
        self.counts["rewritten"] += 1
        self.order.update_all([entry.id])
        self.events.add(entry.object, "ram")
        self.wake()

    async def prove_file(self, entry: Entry) -> bool:
        """Read an object's file and compare its checksums; the caller holds or leases it.

        Returns:
            False if it is damaged or missing, and nobody is served from it any more, or if the disk
            did not give it this time.

        Raises:
            Overloaded: the disk does not answer in time, or its folder is not there.
        """
        if not await self.prove_header(entry):
            return False
        return all([await self.prove_part(entry, at) for at in range(len(entry.object.parts))])

    async def prove_header(self, entry: Entry) -> bool:
        """Prove what comes before the parts; without it, the next start would not know the object.

        Returns:
            As ``prove_file`` does.

        Raises:
            Overloaded: the disk does not answer in time, or its folder is not there.
        """
        if self.disk is None or not entry.on_disk:
            return entry.id in self.catalogue.entries
        proved = await self._from_file(entry, ALIGN, self._prove_header)
        return proved is not None

    def _prove_header(self, object_id: str) -> bool:
        assert self.disk is not None
        self.disk.prove_header(object_id)
        return True

    async def prove_part(self, entry: Entry, number: int) -> bool:
        """Prove one part, if the object still has a file; as ``prove_file`` does.

        Returns:
            As there.

        Raises:
            Overloaded: the disk does not answer in time, or its folder is not there.
        """
        if self.disk is None or not entry.on_disk:
            return entry.id in self.catalogue.entries
        return await self.read_part(entry, number) is not None

    async def read_part(self, entry: Entry, number: int) -> memoryview | None:
        """Read one part from an object's file, and prove it; the caller holds or leases it.

        Returns:
            The part with its padding. None where ``prove_file`` would say False, or without a file.

        Raises:
            Overloaded: the disk does not answer in time, or its folder is not there.
        """
        if self.disk is None or not entry.on_disk:
            return None
        size = padded(entry.object.parts[number].nbytes)
        return await self._from_file(entry, size, self.disk.read_part, number)

    async def _from_file(
        self, entry: Entry, size: int, call: Callable[..., T], *arguments: object
    ) -> T | None:
        """Have a thread read ``size`` bytes of an object's file; None if that failed."""
        if self.reads.is_stuck:
            raise self._late_read()
        work = self.reads.start(call, entry.id, *arguments)
        self._reading_bytes += size
        try:
            read = await work.within(READ_WAIT_S + self._reading_bytes / SLOWEST_RATE)
        except Late as late:
            raise self._late_read() from late
        except FolderGone as gone:
            raise self._folder_gone(gone) from gone
        except OSError as error:
            if entry.on_disk:
                await self._read_failed(entry, error)
            return None
        else:
            self.has_folder = True
            return read
        finally:
            self._reading_bytes -= size

    def remove_file(self, object_id: str) -> Work[None]:
        """Remove an object's file, in the background."""
        assert self.disk is not None
        return self.writes.start(self.disk.remove, object_id)

    async def on_disk_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """Run what changes the disk, one at a time and in order.

        Returns:
            What the call returned.

        Raises:
            Late: the disk takes nothing now.
            OSError: as the call does.
        """
        if self.writes.is_stuck:
            raise Late
        return await self.writes.start(call, *arguments).whole()

    def close(self) -> bool:
        """Give up the threads and the memory; says whether all that was begun is done."""
        self.reads.close(CLOSE_S)
        is_done = self.writes.close(CLOSE_S)
        self.memory.close()
        return is_done

    def is_needed(self, entry: Entry) -> bool:
        """Whether a task or a reader needs an object."""
        return bool(entry.holds or entry.kept) or self.leases.is_pinned(entry.id)

    def is_free(self, entry: Entry) -> bool:
        """Whether nobody wants an object to stay: no task, reader or administrator."""
        return not self.is_needed(entry) and entry.pinned_until_s <= monotonic()

    def _may_leave_ram(self, entry: Entry) -> bool:
        """The same of its bytes in RAM, which are not all of one that has a file."""
        is_held = entry.holds or self.leases.is_pinned(entry.id)
        is_last = entry.kept and not entry.on_disk
        return not is_held and not is_last and entry.pinned_until_s <= monotonic()

    def _make_room(self) -> bool:
        may_lose = self.disk is None or self.is_disk_failing
        victim = self.order.ram_victim(self._may_leave_ram, may_lose=may_lose)
        if victim is None:
            return False
        if victim.on_disk:
            self.drop_from_ram(victim)
        else:
            self.discard(victim, "failed" if self.disk else "evicted_clean")
        return True

    def _session_changed(self, root: bytes, session_key: str) -> None:
        for entry in self.catalogue.of_session(root, session_key):
            self.order.update(entry)

    def check(self) -> None:
        """Check that the counts balance.

        Raises:
            AssertionError: something was lost or counted twice.
        """
        self.memory.arena.check()
        assert self.catalogue.ids == sorted(self.catalogue.entries), "a list has what is not there"
        ended = sum(
            self.counts[fate] for fate in ("spilled", "superseded", "evicted_clean", "failed")
        )
        begun = self.counts["sealed"] + self.counts["rewritten"]
        assert begun == ended + len(self.pending), "a sealed object has no fate"
        assert self.pending_bytes == sum(
            entry.object.payload_bytes for entry in self.pending.values()
        )
