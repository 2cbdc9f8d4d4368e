"""NodeService: what the router asks of a node's supervisor, over a unix socket."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import msgspec

from bramley.common import rpc
from bramley.common.errors import InvalidRequest, SettingsError
from bramley.deploy.keeper import Keeper, canonical
from bramley.protos.v1 import node_pb2, node_pb2_grpc
from bramley.worker.settings import WorkerName

_REASON_CHARS = 200

Context = grpc.aio.ServicerContext[Any, Any]


class NodeServicer(node_pb2_grpc.NodeServiceServicer):
    """Translates calls into the keeper's methods."""

    def __init__(self, keeper: Keeper, epoch: int) -> None:
        self._keeper = keeper
        self._epoch = epoch

    async def StartWorker(  # noqa: D102
        self, request: node_pb2.StartWorkerRequest, context: Context
    ) -> node_pb2.StartWorkerResponse:
        name, spec = _checked(request.spec)
        await self._keeper.start_worker(name, spec, now=request.now, is_pinned=request.pinned)
        return node_pb2.StartWorkerResponse(process=self._keeper.process(name))

    async def StopWorker(  # noqa: D102
        self, request: node_pb2.StopWorkerRequest, context: Context
    ) -> node_pb2.StopWorkerResponse:
        await self._keeper.stop_worker(request.name)
        return node_pb2.StopWorkerResponse()

    async def KillWorker(  # noqa: D102
        self, request: node_pb2.KillWorkerRequest, context: Context
    ) -> node_pb2.KillWorkerResponse:
        reason = " ".join(request.reason.split())[:_REASON_CHARS] or "killed"
        await self._keeper.kill_worker(request.name, request.epoch, reason)
        return node_pb2.KillWorkerResponse()

    async def Reload(  # noqa: D102
        self, request: node_pb2.ReloadRequest, context: Context
    ) -> node_pb2.ReloadResponse:
        try:
            return node_pb2.ReloadResponse(changed=await self._keeper.reload())
        except SettingsError as error:
            raise InvalidRequest(error.key, error.problem) from error

    async def Watch(  # noqa: D102
        self, request: node_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[node_pb2.WatchResponse]:
        sent: node_pb2.WatchResponse | None = None
        while True:
            change = self._keeper.changes.next()
            response = node_pb2.WatchResponse(
                epoch=self._epoch,
                processes=self._keeper.processes(),
                router_settings_json=self._keeper.router_settings_json,
            )
            if response != sent:
                yield response
                sent = response
            await change.wait()


def _checked(spec: node_pb2.WorkerSpec) -> tuple[str, str]:
    try:
        name = msgspec.convert(spec.name, WorkerName)
    except msgspec.ValidationError as error:
        raise InvalidRequest("spec.name", str(error)) from error
    try:
        settings = msgspec.json.decode(spec.settings_json, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest("spec.settings_json", str(error)) from error
    return name, canonical(settings)


class NodeServer:
    """Serves the NodeService of ``keeper`` at its target."""

    def __init__(self, keeper: Keeper, epoch: int) -> None:
        self._servicer = NodeServicer(keeper, epoch)
        self._target = keeper.target
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Begin to serve.

        Raises:
            OSError: the socket cannot be had.
        """
        server = rpc.new_server()
        node_pb2_grpc.add_NodeServiceServicer_to_server(self._servicer, server)
        rpc.add_health(server)
        rpc.add_reflection(server, [node_pb2.DESCRIPTOR.services_by_name["NodeService"].full_name])
        rpc.bind(server, self._target)
        await server.start()
        self._server = server

    async def mend(self) -> None:
        """Serve at a new socket where the old one is gone.

        Raises:
            OSError: it cannot be had.
        """
        if not _exists(self._target):
            await self.stop()  # first: a server unlinks its socket's path when it ends
            await self.start()

    async def stop(self) -> None:
        """Serve no more."""
        if self._server is not None:
            await self._server.stop(None)


def _exists(target: str) -> bool:
    return Path(target.removeprefix("unix:")).exists()
