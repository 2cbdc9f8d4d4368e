"""A cache store as a whole: opens its tiers, serves, looks after time, ends in good order."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import psutil
from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import start_http_server

from bramley.cachestore import metrics
from bramley.cachestore.disk import Disk
from bramley.cachestore.files import Files
from bramley.cachestore.leases import Leases
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.passing import DataSocket
from bramley.cachestore.points import DyingFiles, Points
from bramley.cachestore.scrub import Scrubber
from bramley.cachestore.segments import NATIVE, SegmentKind
from bramley.cachestore.server import PROTOCOL_VERSION, StoreServer
from bramley.cachestore.settings import StoreSettings, disk_budget, disk_floor, ram_budget
from bramley.cachestore.spill import Bounds, Spiller
from bramley.cachestore.store import Limits, Store
from bramley.cachestore.threads import Late
from bramley.cachestore.tiers import Tiers
from bramley.common.logs import facts
from bramley.common.rpc import add_health, add_reflection, bind, new_server
from bramley.common.wire import to_duration
from bramley.protos.v1 import cachestore_pb2, cachestore_pb2_grpc

log = logging.getLogger(__name__)

SERVICE = cachestore_pb2.DESCRIPTOR.services_by_name["CacheStoreService"].full_name
STOP_GRACE_S = 1.0
FLUSH_S = 120.0
FLUSH_SHARE = 0.95  # of a caller's time: the rest is for the answer
SYNC_S = 30.0
TICK_S = 0.5
TOUCH_EVERY_S = 5.0


class StoreProcess:
    """One store.

    Args:
        settings: as the supervisor hands them over.
        socket: gRPC target to bind.
        epoch: of this incarnation.
        kind: of shared memory.
        files: of the SSD tier; those of the operating system, if not given.

    Attributes:
        addresses: where it answers, by kind.
        store: the core; set while serving.
    """

    def __init__(
        self,
        settings: StoreSettings,
        socket: str,
        epoch: int,
        kind: SegmentKind = NATIVE,
        files: Files | None = None,
    ) -> None:
        self._settings = settings
        self._socket = socket
        self._epoch = epoch
        self._kind: SegmentKind = kind
        self._points = Points(settings.die_at)
        self._files = DyingFiles(self._points) if settings.die_at else files
        data = Path(socket.removeprefix("unix:")).with_suffix(".data")
        self.addresses = {"socket": socket, "data": str(data)}
        self.store: Store

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Serve for the length of the block.

        Yields:
            Once it does.

        Raises:
            OSError: an address is not to be had.
        """
        disk, bounds = await asyncio.to_thread(self._open_disk)
        leases = Leases(self._settings.lease_ttl_s, self._epoch)
        ram_bytes = ram_budget(self._settings, psutil.virtual_memory().total)
        tiers = Tiers(ram_bytes, disk, leases, self._kind)
        tiers.recover()
        namespaces = dict[bytes, Namespace]()
        spiller: Spiller | None = None
        if disk is not None:
            spiller = Spiller(tiers, disk, bounds, namespaces, self._points)
        limits = Limits(
            queue_bytes=self._settings.write_queue_bytes or ram_bytes // 2,
            oversize=min(ram_bytes, self._settings.staging_bytes),
        )
        store = self.store = Store(tiers, namespaces, spiller, self._points, limits)
        if disk is not None and self._settings.scrub_bytes_s:
            store.scrubber = Scrubber(tiers, disk, self._settings.scrub_bytes_s)
        data = DataSocket(
            Path(self.addresses["data"]),
            tiers.memory,
            self._settings.staging_bytes,
            self._kind,
            store.disconnected,
        )
        try:
            async with self._running(store, data):
                yield
        finally:
            is_done = tiers.close()
            if disk is not None and is_done:
                await asyncio.to_thread(disk.close, clean=not tiers.pending)
            elif disk is not None:
                log.warning("the disk does not answer, and is left as after a kill")

    @asynccontextmanager
    async def _running(self, store: Store, data: DataSocket) -> AsyncGenerator[None]:
        server = new_server()
        hello = cachestore_pb2.HelloResponse(
            protocol_version=PROTOCOL_VERSION,
            store_id=store.tiers.disk.store_id if store.tiers.disk else secrets.token_hex(8),
            epoch=self._epoch,
            data_socket=self.addresses["data"],
            staging_bytes=self._settings.staging_bytes,
            lease_ttl=to_duration(self._settings.lease_ttl_s),
        )
        servicer = StoreServer(store, data, hello, self.flush)
        cachestore_pb2_grpc.add_CacheStoreServiceServicer_to_server(servicer, server)
        health = add_health(server)
        add_reflection(server, [SERVICE])
        bind(server, self._socket)
        async with self._metrics(store), data.serve(), asyncio.TaskGroup() as tasks:
            await server.start()
            await health.set(SERVICE, HealthCheckResponse.SERVING)
            running = [tasks.create_task(self._tick(store))]
            if store.spiller is not None:
                running.append(tasks.create_task(store.spiller.run()))
            if store.scrubber is not None:
                running.append(tasks.create_task(store.scrubber.run()))
            try:
                yield
            finally:
                await server.stop(STOP_GRACE_S)
                await self._finish(store)
                for task in running:
                    task.cancel()

    def _open_disk(self) -> tuple[Disk | None, Bounds]:
        if not self._settings.folder:
            return None, Bounds(0)
        disk = None
        try:
            disk = Disk.open(Path(self._settings.folder), self._files)
            free, volume = disk.room()
        except OSError as error:
            log.warning("no SSD tier: RAM only", extra=facts(error=error))
            if disk is not None:
                disk.close(clean=False)
            return None, Bounds(0)
        budget = disk_budget(self._settings, free + disk.used_bytes)
        over, found = disk.used_bytes - budget, disk.found.counts()
        log.info("SSD tier", extra=facts(bytes=disk.used_bytes, budget=budget, **found))
        if over > 0:  # what leaves, and how soon, is the spiller's affair
            log.warning("over budget", extra=facts(bytes=over))
        return disk, Bounds(budget, disk_floor(self._settings, volume))

    @asynccontextmanager
    async def _metrics(self, store: Store) -> AsyncGenerator[None]:
        if not self._settings.http:
            yield
            return
        host, _, port = self._settings.http.rpartition(":")
        shown = metrics.registry(store.counts, store.gauges)
        server, _ = start_http_server(int(port), host, shown)
        self.addresses["http"] = f"{host}:{server.server_port}"
        try:
            yield
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    async def _tick(self, store: Store) -> None:
        """End what is over, and note now and then what was used."""
        noted_s = monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = monotonic()
            store.expire(now_s)
            if now_s - noted_s >= TOUCH_EVERY_S:
                noted_s = now_s
                _note_use(store)

    async def flush(
        self, root: bytes, within_s: float | None = None
    ) -> cachestore_pb2.FlushResponse:
        """Write what is pending and put it on the medium; say what could not be.

        Args:
            root: of a namespace; empty for all.
            within_s: longest wait, a moment less; without one, as long as writing takes.

        Returns:
            What is there, and what is missing. What is sealed meanwhile is for the next one.
        """
        store, tiers = self.store, self.store.tiers
        waiting = [e for e in tiers.pending.values() if root in {b"", e.object.root}]
        flushed = True
        try:
            async with asyncio.timeout(within_s and within_s * FLUSH_SHARE):
                if store.spiller is not None:
                    await store.spiller.until_written(waiting)
                if tiers.disk is not None:
                    await _sync(tiers, tiers.disk)
        except OSError as error:  # TimeoutError is one
            log.warning("flush failed", extra=facts(error=error))
            flushed = False
        entries = [e for e in tiers.catalogue.entries.values() if root in {b"", e.object.root}]
        answer = cachestore_pb2.FlushResponse(
            pending=sum(e.id in tiers.pending for e in waiting) if tiers.disk else 0,
            missing=sum(not (e.on_disk or e.id in tiers.pending) for e in entries)
            if tiers.disk
            else len(entries),
            failed=_taken(tiers.failed, root),
            refused=store.refusals.count(root, monotonic()),
            bytes=sum(entry.object.payload_bytes for entry in entries if entry.on_disk),
            longest_prefix_tokens=max((e.end_token for e in entries if e.on_disk), default=0),
        )
        bad = answer.pending or answer.missing or answer.failed or answer.refused
        answer.ok = flushed and not bad
        return answer

    async def _finish(self, store: Store) -> None:
        store.is_draining = True
        answer = await self.flush(b"", FLUSH_S)
        log.info("flushed", extra=facts(ok=answer.ok, pending=answer.pending))
        _note_use(store)


def _taken(counts: Counter[bytes], root: bytes) -> int:
    """Take the count of a namespace, or all counts, and begin anew."""
    if root:
        return counts.pop(root, 0)
    total = counts.total()
    counts.clear()
    return total


async def _sync(tiers: Tiers, disk: Disk) -> None:
    if tiers.writes.is_stuck:
        raise Late
    await tiers.writes.start(disk.flush).within(SYNC_S, cancel=False)


def _note_use(store: Store) -> None:
    """Have it noted what was used, unless the disk is busy with worse."""
    tiers = store.tiers
    if tiers.disk is not None and store.touched and not tiers.writes.is_stuck:
        touched, store.touched = store.touched, set()
        tiers.writes.start(tiers.disk.touch, touched, time.time())


def publish(addresses: dict[str, str]) -> None:
    """Let names that stay, ``store.sock`` and ``store.data``, lead to this incarnation."""
    for key in ("socket", "data"):
        path = Path(addresses[key].removeprefix("unix:"))
        name = path.with_name(f"store{path.suffix}")
        made = path.with_name(f"{path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        made.symlink_to(path.name)
        os.replace(made, name)
