"""Feeds fleet from the node's processes and the workers' reports; reconnects with backoff."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import grpc
import msgspec

from bramley.common.ids import ModelName, WorkerName, worker_name
from bramley.common.logs import facts
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.common.wire import short_name
from bramley.protos.v1 import node_pb2, node_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc
from bramley.router import fleet
from bramley.router.fleet import WorkerView
from bramley.router.prefixes import StoreView
from bramley.router.reconnect import Backoff, again_and_again
from bramley.router.store import follow

if TYPE_CHECKING:
    from bramley.protos.v1.node_pb2_grpc import NodeServiceAsyncStub
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

log = logging.getLogger(__name__)

# A worker reports once a second at least; one that is silent longer is given nothing new.
REPORT_WAIT_S = 5.0
NODE_CALL_S = 10.0
# Calls to a worker that died end by themselves; this is for the ones that do not.
CLOSE_GRACE_S = 30.0
_REFUSALS = (
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Watch:
    """Keeps a view of each worker and a channel to it.

    Args:
        node: target of the NodeService; empty if there is none.
        models: settings of each model's workers.
        replicas: workers of a model, where more than one.
        changed: called with each new view, and the one before it.

    Attributes:
        views: what is known of each worker.
        store: where the node's cache store answers; empty while none runs.
        prefixes: what it holds, as far as it has told.
    """

    def __init__(
        self,
        node: str,
        models: dict[str, dict[str, object]],
        replicas: dict[str, int],
        changed: Callable[[WorkerView, WorkerView], None],
    ) -> None:
        self._node = node
        self._specs: dict[WorkerName, node_pb2.WorkerSpec] = {}
        self.views: dict[WorkerName, WorkerView] = {}
        for model, settings in models.items():
            for number in range(1, replicas.get(model, 1) + 1):
                name = worker_name(ModelName(model), number)
                self._specs[name] = node_pb2.WorkerSpec(
                    name=name, settings_json=msgspec.json.encode(settings)
                )
                self.views[name] = WorkerView(ModelName(model), name)
        self._changed = changed
        self.store = ""
        self.prefixes = StoreView()
        self._store_task: asyncio.Task[None] | None = None
        self._links: dict[WorkerName, _Link] = {}

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
        link.task.cancel()
        self._links[view.worker] = replace(link, task=self._reports(view, link.stub))

    async def run(self) -> None:
        """Follow the node and its workers until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if self._node:
                    async with open_channel(self._node) as channel:
                        stub = node_pb2_grpc.NodeServiceStub(channel)
                        await again_and_again("the node", partial(self._follow_node, stub))
        finally:
            for link in self._links.values():
                await link.channel.close()

    async def _follow_node(self, stub: "NodeServiceAsyncStub", backoff: Backoff) -> None:
        call = stub.Watch(node_pb2.WatchRequest())
        try:
            await self._start_all(stub)
            async for response in call:
                backoff.reset()
                self._processes(response.processes)
        finally:
            call.cancel()

    async def _start_all(self, stub: "NodeServiceAsyncStub") -> None:
        for name, spec in self._specs.items():
            try:
                await stub.StartWorker(node_pb2.StartWorkerRequest(spec=spec), timeout=NODE_CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _REFUSALS:
                    raise
                self._apply(name, fleet.StartRefused(RemoteError(error).message))
            else:
                self._apply(name, fleet.StartTaken())

    def _processes(self, processes: Iterable[node_pb2.Process]) -> None:
        # Of two incarnations the newer counts: the older one is on its way out.
        ordered = sorted(processes, key=lambda process: process.epoch)
        running = node_pb2.PROCESS_STATE_RUNNING
        stores = [one.address for one in ordered if one.role == "store" and one.state == running]
        self._store_seen(stores[-1] if stores else "")
        workers = {one.name: one for one in ordered if one.role == "worker"}
        for name, view in self.views.items():
            if process := workers.get(name):
                self._apply(name, fleet.ProcessSeen(process))
            elif view.process != node_pb2.PROCESS_STATE_UNSPECIFIED:
                self._apply(name, fleet.ProcessGone())
            self._follow(self.views[name])

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
        if link is not None:
            link.task.cancel()
            # Its calls end by themselves when it is dead; closing now would cancel them here.
            self._tasks.create_task(link.channel.close(CLOSE_GRACE_S))
            del self._links[view.worker]
        if view.is_running:
            channel = open_channel(view.address)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            task = self._reports(view, stub)
            self._links[view.worker] = _Link(view.epoch, channel, stub, task)

    def _reports(self, view: WorkerView, stub: "WorkerServiceAsyncStub") -> asyncio.Task[None]:
        following = partial(self._follow_reports, view, stub)
        return self._tasks.create_task(again_and_again(f"worker {view.worker}", following))

    async def _follow_reports(
        self, view: WorkerView, stub: "WorkerServiceAsyncStub", backoff: Backoff
    ) -> None:
        call = stub.WatchLoad(worker_pb2.WatchLoadRequest())
        try:
            while True:
                async with asyncio.timeout(REPORT_WAIT_S):
                    response = await call.read()
                if not isinstance(response, worker_pb2.WatchLoadResponse):
                    return
                backoff.reset()
                self._apply(view.worker, fleet.LoadSeen(view.epoch, response.load))
        finally:
            call.cancel()
            self._apply(view.worker, fleet.LoadLost(view.epoch))

    def _apply(self, name: WorkerName, event: fleet.Event) -> None:
        before = self.views[name]
        view = self.views[name] = fleet.apply(before, event)
        if view == before:
            return
        if view.state != before.state:
            state = short_name(types_pb2.ModelState, view.state)
            log.info("worker state", extra=facts(worker=name, state=state, epoch=view.epoch))
        self._changed(view, before)


@dataclass(frozen=True)
class _Link:
    epoch: int
    channel: grpc.aio.Channel
    stub: "WorkerServiceAsyncStub"
    task: asyncio.Task[None]
