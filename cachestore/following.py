"""Keeps a worker linked to whichever store there is, and bears what a store does wrong."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Generator
from time import monotonic
from typing import TYPE_CHECKING

import grpc

from bramley.cachestore.link import Link, establish
from bramley.cachestore.passing import NoDescriptors
from bramley.common.logs import facts
from bramley.protos.v1 import cachestore_pb2 as pb

if TYPE_CHECKING:
    from bramley.cachestore.lease import Lease

log = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 0.5
PROBE_S = 2.0  # longest wait of a late store, before it is asked once more
RENEWALS = 6  # of each lease within its time

# Of a call to a store; UsageError: its channel has been closed meanwhile.
FAILURES = (grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, OSError)


class Following:
    """The bond with the store of a target, over all its incarnations. Make it on the event loop.

    Args:
        target: gRPC target of the store, a name that stays when the store is restarted.
        name: of this worker.
        inline: whether bytes go in messages even where descriptors could be passed.
        wait_s: longest wait of a call.

    Attributes:
        link: to the store; None while there is none.
    """

    def __init__(self, target: str, name: str, *, inline: bool, wait_s: float) -> None:
        self.link: Link | None = None
        self._target = target
        self._name = name
        self._inline = inline
        self._wait_s = wait_s
        self._namespaces: dict[bytes, pb.OpenNamespaceRequest] = {}
        self._leases: dict[int, Lease] = {}
        self._linked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: Link | None = None
        self._following = asyncio.create_task(self._follow())

    async def linked(self) -> None:
        """Wait until there is a store."""
        await self._linked.wait()

    async def close(self) -> None:
        """End the link; the store frees all that this worker holds."""
        self._following.cancel()
        await asyncio.wait([self._following])
        for task in self._tasks:
            task.cancel()

    def _spawn(self, step: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # A store that fails

    @property
    def _answering(self) -> Link | None:
        """The link, unless its store was late and has not answered since."""
        link = self.link
        return None if link is self._late else link

    @contextlib.contextmanager
    def _tolerated(self, link: Link) -> Generator[None]:
        """The store's failure is a miss; after a late answer it is not asked for a while."""
        try:
            yield
        except asyncio.CancelledError:
            # gRPC says so too when the channel is closed under a call; that is not our caller.
            task = asyncio.current_task()
            if link.is_alive or task is None or task.cancelling():
                raise
        except FAILURES as error:
            log.debug("a call to the store failed", extra=facts(error=error))
            if is_late(error) and link is self.link and self._late is None:
                self._late = link
                self._spawn(self._probe(link))

    async def _probe(self, link: Link) -> None:
        """Wait until a late store answers, or goes."""
        request = pb.TouchRequest(connection_id=link.id)
        try:
            while link.is_alive:
                try:
                    await link.stub.Touch(request, timeout=PROBE_S)
                except FAILURES:
                    await asyncio.sleep(BACKOFF_MIN_S)
                else:
                    return
        finally:
            self._late = None

    # The link

    async def _follow(self) -> None:
        wait_s = BACKOFF_MIN_S
        while True:
            try:
                link = await self._establish()
            except FAILURES as error:
                log.debug("no store", extra=facts(error=error, wait_s=wait_s))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, BACKOFF_MAX_S)
                continue
            wait_s = BACKOFF_MIN_S
            log.info("store found", extra=facts(epoch=link.epoch, connection=link.id))
            try:
                await self._keep(link)
            finally:
                self.link = None
                self._linked.clear()
                self._leases.clear()
                await link.close()
            log.warning("store lost", extra=facts(epoch=link.epoch))

    async def _establish(self) -> Link:
        try:
            link = await establish(self._target, self._name, inline=self._inline)
        except NoDescriptors as error:
            log.warning("no shared memory: bytes go in messages", extra=facts(error=error))
            link = await establish(self._target, self._name, inline=True)
        try:
            for request in self._namespaces.values():
                await link.stub.OpenNamespace(request, timeout=self._wait_s)
        except BaseException:
            await link.close()
            raise
        return link

    async def _keep(self, link: Link) -> None:
        self.link = link
        self._linked.set()
        renewing = asyncio.create_task(self._renew(link))
        try:
            with contextlib.suppress(OSError):
                await link.follow()
        finally:
            renewing.cancel()

    async def _renew(self, link: Link) -> None:
        while True:
            await asyncio.sleep(link.ttl_s / RENEWALS)
            leases = dict(self._leases)
            if not leases:
                continue
            asked_s = monotonic()
            request = pb.TouchRequest(lease_ids=list(leases), connection_id=link.id)
            with self._tolerated(link):
                answer = await link.stub.Touch(request, timeout=self._wait_s)
                for lease_id in set(leases) - set(answer.expired_lease_ids):
                    leases[lease_id].renewed(asked_s)


def is_late(error: BaseException) -> bool:
    """Whether a failure is a store that did not answer in time."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return isinstance(error, TimeoutError)
