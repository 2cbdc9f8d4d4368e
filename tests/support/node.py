"""A NodeService in the test's own process; its workers are fake, here or in processes."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
import msgspec

from bramley.bench.children import Spawned, context_of, spawn
from bramley.common import rpc
from bramley.common.child import ChildContext
from bramley.common.errors import AlreadyExists, UnknownResource, Unsupported
from bramley.protos.v1 import node_pb2, node_pb2_grpc
from bramley.router.settings import RouterSettings
from support import fake_worker
from support.fake_worker import FakeWorker
from support.script import Script

Context = grpc.aio.ServicerContext[Any, Any]


class Host(Protocol):
    """Where a worker lives."""

    async def stop(self) -> str:
        """End it at once, and say how it ended."""
        ...


class LocalHost:
    """A worker in this process; its death is the end of its server."""

    def __init__(self, model: str, script: Script, died: Callable[[], None]) -> None:
        self.worker = FakeWorker(model, script, died)
        self._server: grpc.aio.Server | None = None
        self._loading: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        """Serve, and begin to load."""
        self._server = await fake_worker.start(self.worker, address)
        self._loading = asyncio.create_task(self.worker.load())

    async def stop(self) -> str:
        """End it at once, and say how it ended."""
        if self._loading is not None:
            self._loading.cancel()
        if self._server is not None:
            await self._server.stop(None)
        return "signal SIGKILL"


class ProcessHost:
    """A worker in a process of its own."""

    def __init__(self, child: Spawned) -> None:
        self._child = child

    async def stop(self) -> str:
        """Kill it, and say how it ended."""
        code = await self._child.end()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


class FakeNode(node_pb2_grpc.NodeServiceServicer):
    """The service, and the workers of one node.

    Args:
        folder: for sockets, of a short path.
        script: of a model without one in ``scripts``.
        in_processes: whether workers are processes.

    Attributes:
        scripts: by model, for the worker's next start.
        workers: by model, those that live in this process.
        processes: what Watch tells.
        started: names of StartWorker calls.
        specs: settings of each worker that is wanted.
        stopped: names of StopWorker calls.
        killed: reasons of KillWorker calls.
        pinned: by worker, as last said.
        may_start: clear it to keep StartWorker from answering.
        may_stop: clear it to keep a worker from ending.
    """

    def __init__(
        self, folder: Path, script: Script | None = None, *, in_processes: bool = False
    ) -> None:
        self._folder = folder
        self._script = script or Script()
        self._in_processes = in_processes
        self._server: grpc.aio.Server | None = None
        self.specs: dict[str, bytes] = {}
        self._hosts: dict[str, Host] = {}
        self._news = asyncio.Event()
        self._epoch = 0
        self.scripts: dict[str, Script] = {}
        self.workers: dict[str, FakeWorker] = {}
        self.processes: dict[str, node_pb2.Process] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.killed: list[str] = []
        self.pinned: dict[str, bool] = {}
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self._settings_json = b""

    @property
    def target(self) -> str:
        """The gRPC target of the service."""
        return f"unix:{self._folder}/node.sock"

    async def serve(self) -> None:
        """Serve; a second time after ``leave``, at the same address."""
        self._server = rpc.new_server()
        node_pb2_grpc.add_NodeServiceServicer_to_server(self, self._server)
        rpc.bind(self._server, self.target)
        await self._server.start()

    async def leave(self) -> None:
        """Stop serving; the workers live on."""
        if self._server is not None:
            await self._server.stop(None)

    async def close(self) -> None:
        """Stop serving and end every worker."""
        await self.leave()
        for host in self._hosts.values():
            await host.stop()

    async def kill(self, name: str) -> None:
        """End a worker, and tell of it; ``start`` brings the next incarnation."""
        last_exit = await self._hosts.pop(name).stop()
        self.workers.pop(name, None)
        before = self.processes[name]
        self.tell(
            node_pb2.Process(
                role="worker",
                name=name,
                state=node_pb2.PROCESS_STATE_BACKOFF,
                epoch=before.epoch,
                last_exit=last_exit,
                restarts=before.restarts,
            )
        )

    async def start(self, name: str) -> None:
        """Start a worker's next incarnation, by its script."""
        self._epoch += 1
        before = self.processes.get(name, node_pb2.Process())
        context = context_of("worker", name, str(self._folder), self._epoch)
        process = node_pb2.Process(
            role="worker",
            name=name,
            state=node_pb2.PROCESS_STATE_STARTING,
            epoch=self._epoch,
            last_exit=before.last_exit,
            restarts=before.restarts + bool(before.epoch),
        )
        self.tell(process)
        script = self.scripts.get(name, self._script)
        if self._in_processes:
            self._hosts[name] = await self._spawn(context, script)
        else:
            host = LocalHost(name, script, lambda: self._died(name))
            await host.start(context.socket)
            self._hosts[name], self.workers[name] = host, host.worker
        running = node_pb2.Process()
        running.CopyFrom(process)
        running.state = node_pb2.PROCESS_STATE_RUNNING
        running.address = context.socket
        self.tell(running)

    def tell(self, process: node_pb2.Process) -> None:
        """Have Watch say so of a process."""
        process.pinned = self.pinned.get(process.name, False)
        self.processes[process.name] = process
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def StartWorker(
        self, request: node_pb2.StartWorkerRequest, context: Context
    ) -> node_pb2.StartWorkerResponse:
        """Start it, unless it runs."""
        name, settings = request.spec.name, request.spec.settings_json
        self.started.append(name)
        await self.may_start.wait()
        self.pinned[name] = request.pinned
        if process := self.processes.get(name):
            self.tell(process)
        if self.specs.setdefault(name, settings) != settings:
            raise AlreadyExists(f"worker {name!r} runs with other settings")
        if name not in self.processes:
            await self.start(name)
        return node_pb2.StartWorkerResponse(process=self.processes[name])

    async def StopWorker(
        self, request: node_pb2.StopWorkerRequest, context: Context
    ) -> node_pb2.StopWorkerResponse:
        """End it, once it may."""
        name = request.name
        self.stopped.append(name)
        await self.may_stop.wait()
        if self.specs.pop(name, None) is None:
            raise UnknownResource("worker", name)
        if host := self._hosts.pop(name, None):
            await host.stop()
        self.workers.pop(name, None)
        self.processes.pop(name, None)
        self._tell()
        return node_pb2.StopWorkerResponse()

    async def KillWorker(
        self, request: node_pb2.KillWorkerRequest, context: Context
    ) -> node_pb2.KillWorkerResponse:
        """End an incarnation, and start the next."""
        process = self.processes.get(request.name)
        if process is None or process.epoch != request.epoch:
            raise UnknownResource("worker", request.name)
        self.killed.append(request.reason)
        await self.kill(request.name)
        await self.start(request.name)
        return node_pb2.KillWorkerResponse()

    async def Reload(self, request: node_pb2.ReloadRequest, context: Context) -> NoReturn:
        """Refuse: a test gives new settings with ``reload``."""
        raise Unsupported("a fake node reads no settings")

    def reload(self, settings: RouterSettings) -> None:
        """Have Watch tell the router of new settings."""
        self._settings_json = msgspec.json.encode(settings)
        self._tell()

    async def Watch(
        self, request: node_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[node_pb2.WatchResponse]:
        """Tell of every process, at once and at each change."""
        while True:
            news = self._news
            yield node_pb2.WatchResponse(
                epoch=1,
                processes=self.processes.values(),
                router_settings_json=self._settings_json,
            )
            await news.wait()

    def _died(self, name: str) -> None:
        self._dying = asyncio.create_task(self.kill(name))

    async def _spawn(self, context: ChildContext, script: Script) -> ProcessHost:
        script_file = self._folder / f"script-{context.epoch}.json"
        script_file.write_bytes(msgspec.json.encode(script))
        command = [fake_worker.__file__, "--script", str(script_file)]
        return ProcessHost(await spawn(command, context, {}))
