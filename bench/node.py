"""A router over one fake worker, each in a process of its own, for benchmarks."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import msgspec
import psutil

from bramley.bench.children import context_of, spawn
from bramley.common import rpc
from bramley.common.errors import Unsupported
from bramley.protos.v1 import (
    node_pb2,
    node_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    types_pb2,
    worker_pb2_grpc,
)
from bramley.router.settings import RouterSettings

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

MODEL = "fake"
FAKE_WORKER = Path(__file__).resolve().parents[1] / "tests/support/fake_worker.py"
POLL_S = 0.05
Context = grpc.aio.ServicerContext[Any, Any]


class Node(node_pb2_grpc.NodeServiceServicer):
    """Tells the router of one worker, which runs already."""

    def __init__(self, worker: node_pb2.Process) -> None:
        self._worker = worker

    async def StartWorker(
        self, request: node_pb2.StartWorkerRequest, context: Context
    ) -> node_pb2.StartWorkerResponse:
        """Answer with the one that runs."""
        return node_pb2.StartWorkerResponse(process=self._worker)

    async def StopWorker(self, request: node_pb2.StopWorkerRequest, context: Context) -> NoReturn:
        """Refuse."""
        raise Unsupported("the bench ends its worker itself")

    async def KillWorker(self, request: node_pb2.KillWorkerRequest, context: Context) -> NoReturn:
        """Refuse."""
        raise Unsupported("the bench ends its worker itself")

    async def Reload(self, request: node_pb2.ReloadRequest, context: Context) -> NoReturn:
        """Refuse."""
        raise Unsupported("the bench has no settings to read again")

    async def Watch(
        self, request: node_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[node_pb2.WatchResponse]:
        """Tell of it once; nothing changes."""
        yield node_pb2.WatchResponse(epoch=1, processes=[self._worker])
        await asyncio.Event().wait()


@dataclass
class Setup:
    """The processes under measurement.

    Attributes:
        http: where the router's HTTP side answers; empty for nowhere.
    """

    router: psutil.Process
    http: str
    through: "RouterServiceAsyncStub"
    direct: "WorkerServiceAsyncStub"

    def router_cpu_s(self) -> float:
        """CPU time that the router has used so far."""
        times = self.router.cpu_times()
        return times.user + times.system


def _write(folder: str, name: str, value: object) -> str:
    file = Path(folder, f"{name}.json")
    file.write_bytes(msgspec.json.encode(value))
    return str(file)


@asynccontextmanager
async def processes(http: str = "") -> AsyncGenerator[Setup]:
    """Run worker and router for the length of the block.

    Args:
        http: of the router's settings.

    Yields:
        Both, the model ready.
    """
    folder = tempfile.mkdtemp(prefix="bramley-")
    can = {"max_rows": 256, "heartbeat_s": 1.0, "context_tokens": 1 << 21}
    script = _write(folder, "script", can)
    who = context_of("worker", MODEL, folder)
    worker = await spawn(
        [str(FAKE_WORKER), "--script", script], who, {}, asyncio.subprocess.DEVNULL
    )
    told = node_pb2.Process(
        role="worker",
        name=MODEL,
        pid=worker.process.pid,
        state=node_pb2.PROCESS_STATE_RUNNING,
        epoch=1,
        address=who.socket,
    )
    settings = RouterSettings(
        grpc="127.0.0.1:0", http=http, node=f"unix:{folder}/node.sock", models={MODEL: {}}
    )
    who = context_of("router", "router", folder)
    router = await spawn(["-m", "bramley.router"], who, settings, asyncio.subprocess.DEVNULL)
    node = rpc.new_server()
    node_pb2_grpc.add_NodeServiceServicer_to_server(Node(told), node)
    rpc.bind(node, f"unix:{folder}/node.sock")
    await node.start()
    try:
        async with (
            rpc.open_channel(router.addresses["grpc"]) as public,
            rpc.open_channel(told.address) as private,
        ):
            through = router_pb2_grpc.RouterServiceStub(public)
            await _until_ready(through)
            direct = worker_pb2_grpc.WorkerServiceStub(private)
            shown = router.addresses.get("http", "")
            yield Setup(psutil.Process(router.process.pid), shown, through, direct)
    finally:
        for child in (router, worker):
            await child.end(signal.SIGTERM)
        await node.stop(None)
        shutil.rmtree(folder)


async def _until_ready(stub: "RouterServiceAsyncStub") -> None:
    request = router_pb2.GetModelRequest(model=MODEL)
    while (await stub.GetModel(request)).model.state != types_pb2.MODEL_STATE_READY:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
