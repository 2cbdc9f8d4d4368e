"""Feeds fleet from the node's processes and the workers' reports; reconnects with backoff."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import grpc
import msgspec

from bramley.common.ids import ModelName, WorkerName, worker_name
from bramley.common.logs import facts
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.common.wire import short_name
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2, worker_pb2_grpc
from bramley.router import fleet
from bramley.router.fleet import WorkerView
from bramley.router.node import Node
from bramley.router.prefixes import StoreView
from bramley.router.reconnect import Backoff, again_and_again
from bramley.router.store import follow

if TYPE_CHECKING:
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

log = logging.getLogger(__name__)

# A worker reports once a second at least; one that is silent longer is given nothing new.
REPORT_WAIT_S = 5.0
LOOK_S = 1.0
# Calls to a worker that died end by themselves; this is for the ones that do not.
CLOSE_GRACE_S = 30.0
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Watch:
    """Keeps a view of each worker and a channel to it, and has the node start and stop them.

    Args:
        node: target of the NodeService; empty if there is none.
        hang_timeout_s: a worker that is silent, or inside one step, for as long is killed.
        changed: called with each new view, and the one before it.
        resettled: called with the router's settings when the node has new ones.

    Attributes:
        views: what is known of each worker.
        store: where the node's cache store answers; empty while none runs.
        prefixes: what it holds, as far as it has told.
        connected: set once the node has told of its processes.
    """

    def __init__(
        self,
        node: str,
        hang_timeout_s: float,
        changed: Callable[[WorkerView, WorkerView], None],
        resettled: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._node = Node(node)
        self.hang_timeout_s = hang_timeout_s
        self._changed = changed
        self._resettled = resettled
        self._specs: dict[WorkerName, node_pb2.WorkerSpec] = {}
        self.views: dict[WorkerName, WorkerView] = {}
        self._wanted: dict[WorkerName, bool] = {}  # and whether it is pinned
        self._unheard = set[WorkerName]()  # wanted, of which the node may not have heard
        self._starting = defaultdict[WorkerName, asyncio.Lock](asyncio.Lock)
        self._pinned: dict[WorkerName, bool] = {}  # of those that run, as the node tells
        self._settings = b""
        self.connected = asyncio.Event()
        self.store = ""
        self.prefixes = StoreView()
        self._store_task: asyncio.Task[None] | None = None
        self._links: dict[WorkerName, _Link] = {}

    def define(self, model: ModelName, settings: dict[str, object], replicas: int) -> None:
        """Say what a model's workers are started with, the next time that they are."""
        self.forget(model)
        for number in range(1, replicas + 1):
            name = worker_name(model, number)
            self._specs[name] = node_pb2.WorkerSpec(
                name=name, settings_json=msgspec.json.encode(settings)
            )
            self.views[name] = WorkerView(model, name)

    def forget(self, model: ModelName) -> None:
        """Know nothing of a model any more, whose workers are gone."""
        for name in self._workers_of(model):
            self._unlink(name)
            del self._specs[name], self.views[name]

    def found(self, model: ModelName) -> list[bool]:
        """Of a model's workers that the node has: whether each is pinned."""
        return [self._pinned[name] for name in self._workers_of(model) if name in self._pinned]

    async def start(self, model: ModelName, *, pinned: bool, now: bool = False) -> bool:
        """Have a model's workers run from now on, whenever there is a node.

        Args:
            model: whose.
            pinned: told to whoever routes for the node next.
            now: try again at once what has crashed again and again.

        Returns:
            Whether the node refuses, since they run with other settings.
        """
        names = self._workers_of(model)
        self._wanted.update(dict.fromkeys(names, pinned))
        is_other = False
        for name in names:
            is_again = now and self.views[name].is_failed
            if is_again:
                self._apply(name, fleet.TriedAgain())
            is_other |= await self._start(name, now=is_again)
        return is_other

    async def stop(self, model: ModelName) -> None:
        """Have none of a model's workers run, and wait until they are gone."""
        names = self._workers_of(model)
        for name in names:
            self._wanted.pop(name, None)
        await asyncio.gather(*map(self._stop, names))
        for name in names:
            self._apply(name, fleet.ProcessGone())
            self._follow(self.views[name])

    def stub(self, view: WorkerView) -> "WorkerServiceAsyncStub":
        """The client of the incarnation that ``view``, which is ready, tells of."""
        link = self._links[view.worker]
        assert link.epoch == view.epoch
        return link.stub

    def lost(self, view: WorkerView) -> None:
        """Believe a worker to be gone until it reports again: a call to it broke.

        What its stream of reports still holds may be from before: only a new one counts.
        """
        link = self._links.get(view.worker)
        if link is None or link.epoch != view.epoch or self.views[view.worker].load is None:
            return
        self._apply(view.worker, fleet.LoadLost(view.epoch))
        if link.task:
            link.task.cancel()
        link.task = self._reports(view, link)

    async def run(self) -> None:
        """Follow the node and its workers until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if self._node:
                    self._tasks.create_task(self._look_after())
                    async with self._node.open():
                        await again_and_again("the node", self._follow_node)
        finally:
            for link in self._links.values():
                await link.channel.close()

    def _workers_of(self, model: ModelName) -> list[WorkerName]:
        return [name for name, view in self.views.items() if view.model == model]

    async def _follow_node(self, backoff: Backoff) -> None:
        is_new = True
        async with aclosing(self._node.watch()) as responses:
            async for response in responses:
                backoff.reset()
                self._processes(response.processes)
                if is_new:
                    is_new = False
                    await self._settle(response.processes)
                if response.router_settings_json not in {b"", self._settings}:
                    self._settings = response.router_settings_json
                    self._resettled(self._settings)

    async def _settle(self, processes: Iterable[node_pb2.Process]) -> None:
        """Tell a node that was away what is wanted; end what an earlier router left."""
        for one in processes:
            name = WorkerName(one.name)
            if one.role == "worker" and name not in self.views:
                log.warning("stopping what no settings name", extra=facts(worker=name))
                self._tasks.create_task(self._node.stop(name))
        self.connected.set()
        for name in list(self._wanted):
            await self._start(name)

    async def _start(self, name: WorkerName, *, now: bool = False) -> bool:
        self._unheard.discard(name)
        async with self._starting[name]:
            if name not in self._wanted:  # any more: it was stopped while others were started
                return False
            try:
                await self._node.start(self._specs[name], now=now, pinned=self._wanted[name])
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                    return True
                if error.code() in _REFUSALS:
                    self._apply(name, fleet.StartRefused(RemoteError(error).message))
                else:  # the node is away, or answers too late: it is told again
                    self._unheard.add(name)
            else:
                self._apply(name, fleet.StartTaken())
        return False

    async def _stop(self, name: WorkerName) -> None:
        async with self._starting[name]:
            pass  # what is on its way could come to the node later, and make it wanted for ever
        await self._node.stop(name)

    def _processes(self, processes: Iterable[node_pb2.Process]) -> None:
        # Of two incarnations the newer counts: the older one is on its way out.
        ordered = sorted(processes, key=lambda process: process.epoch)
        running = node_pb2.PROCESS_STATE_RUNNING
        stores = [one.address for one in ordered if one.role == "store" and one.state == running]
        self._store_seen(stores[-1] if stores else "")
        workers = {one.name: one for one in ordered if one.role == "worker"}
        self._pinned = {WorkerName(name): one.pinned for name, one in workers.items()}
        for name, view in list(self.views.items()):
            if process := workers.get(name):
                self._apply(name, fleet.ProcessSeen(process))
            elif view.process != node_pb2.PROCESS_STATE_UNSPECIFIED:
                self._apply(name, fleet.ProcessGone())
            self._follow(self.views[name])

    async def _look_after(self) -> None:
        """Have killed who hangs, and started what the node has not heard of."""
        while True:
            due_s = monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            if monotonic() > due_s + LOOK_S:  # we stood still: what they said is not read yet
                for link in self._links.values():
                    link.heard_s = monotonic()
            for name in list(self._unheard):
                await self._start(name)
            for name, link in list(self._links.items()):
                if not link.is_condemned and (reason := self._why_it_hangs(name, link)):
                    told = facts(worker=name, epoch=link.epoch, reason=reason)
                    log.error("a worker hangs", extra=told)
                    link.is_condemned = await self._node.kill(name, link.epoch, reason)

    def _why_it_hangs(self, name: WorkerName, link: "_Link") -> str:
        """Say what it hangs in: it is stopped, or its event loop or its engine is."""
        silent_s = monotonic() - link.heard_s
        if silent_s > self.hang_timeout_s:
            return f"silent for {silent_s:.0f} s"
        load = self.views[name].load
        if load and load.step_age_s > self.hang_timeout_s:
            return f"inside one step for {load.step_age_s:.0f} s"
        return ""

    def _store_seen(self, address: str) -> None:
        if address == self.store:
            return
        self.store = address
        self.prefixes.reset(0, 0)
        if self._store_task is not None:
            self._store_task.cancel()
        following = partial(follow, address, self.prefixes)
        self._store_task = (
            self._tasks.create_task(again_and_again("the store", following)) if address else None
        )

    def _follow(self, view: WorkerView) -> None:
        """Keep a link to this incarnation, and to no other."""
        link = self._links.get(view.worker)
        if view.is_running and link is not None and link.epoch == view.epoch:
            return
        self._unlink(view.worker)
        if view.is_running:
            link = _Link(view.epoch, open_channel(view.address))
            self._links[view.worker] = link
            link.task = self._reports(view, link)

    def _unlink(self, name: WorkerName) -> None:
        if link := self._links.pop(name, None):
            if link.task:
                link.task.cancel()
            # Its calls end by themselves when it is dead; closing now would cancel them here.
            self._tasks.create_task(link.channel.close(CLOSE_GRACE_S))

    def _reports(self, view: WorkerView, link: "_Link") -> asyncio.Task[None]:
        following = partial(self._follow_reports, view, link)
        return self._tasks.create_task(again_and_again(f"worker {view.worker}", following))

    async def _follow_reports(self, view: WorkerView, link: "_Link", backoff: Backoff) -> None:
        call = link.stub.WatchLoad(worker_pb2.WatchLoadRequest())
        try:
            while True:
                async with asyncio.timeout(REPORT_WAIT_S):
                    response = await call.read()
                if not isinstance(response, worker_pb2.WatchLoadResponse):
                    return
                backoff.reset()
                link.heard_s = monotonic()
                self._apply(view.worker, fleet.LoadSeen(view.epoch, response.load))
        finally:
            call.cancel()
            self._apply(view.worker, fleet.LoadLost(view.epoch))

    def _apply(self, name: WorkerName, event: fleet.Event) -> None:
        before = self.views.get(name)
        if before is None:  # of a model that is no more
            return
        view = self.views[name] = fleet.apply(before, event, self.hang_timeout_s)
        if view == before:
            return
        if view.state != before.state:
            state = short_name(types_pb2.ModelState, view.state)
            log.info("worker state", extra=facts(worker=name, state=state, epoch=view.epoch))
        self._changed(view, before)


@dataclass
class _Link:
    """A channel to one incarnation, and who reads its reports."""

    epoch: int
    channel: grpc.aio.Channel
    task: asyncio.Task[None] | None = None
    heard_s: float = field(default_factory=monotonic)
    is_condemned: bool = False
    stub: "WorkerServiceAsyncStub" = field(init=False)

    def __post_init__(self) -> None:
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
