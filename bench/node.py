"""A router over one fake worker, each in a process of its own, for benchmarks."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import msgspec
import psutil

from bramley.common import rpc
from bramley.common.child import ChildContext
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

    async def Watch(
        self, request: node_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[node_pb2.WatchResponse]:
        """Tell of it once; nothing changes."""
        yield node_pb2.WatchResponse(epoch=1, processes=[self._worker])
        await asyncio.Event().wait()


@dataclass
class Setup:
    """The processes under measurement."""

    router: psutil.Process
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


async def spawn(
    command: Sequence[str], context: ChildContext, settings: object
) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    """Start a child as a supervisor does, and wait until it is ready.

    Returns:
        The process, and the addresses that it told.
    """
    file = _write(context.run_dir, context.role, settings)
    ready_fd, child_ready_fd = os.pipe()
    child_owner_fd, _ = os.pipe()  # open for as long as this process lives
    context = msgspec.structs.replace(context, ready_fd=child_ready_fd, owner_fd=child_owner_fd)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "--child", context.argument(), "--settings", file),
        pass_fds=(child_ready_fd, child_owner_fd),
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(child_ready_fd)
    os.close(child_owner_fd)
    with os.fdopen(ready_fd) as ready:
        line = await asyncio.to_thread(ready.readline)
    return process, msgspec.json.decode(line, type=dict[str, str])


@asynccontextmanager
async def processes() -> AsyncGenerator[Setup]:
    """Run worker and router for the length of the block.

    Yields:
        Both, the model ready.
    """
    folder = tempfile.mkdtemp(prefix="bramley-")

    def context(role: str, name: str) -> ChildContext:
        lease = f"{folder}/lease"
        return ChildContext(
            role=role,
            name=name,
            epoch=1,
            run_dir=folder,
            lease_file=lease,
            ready_fd=-1,
            owner_fd=-1,
        )

    script = _write(folder, "script", {"max_rows": 256, "heartbeat_s": 1.0})
    command = [str(FAKE_WORKER), "--script", script]
    worker, _ = await spawn(command, context("worker", MODEL), {})
    told = node_pb2.Process(
        role="worker",
        name=MODEL,
        pid=worker.pid,
        state=node_pb2.PROCESS_STATE_RUNNING,
        epoch=1,
        address=context("worker", MODEL).socket,
    )
    settings = RouterSettings(
        grpc="127.0.0.1:0", http="", node=f"unix:{folder}/node.sock", models={MODEL: {}}
    )
    router, addresses = await spawn(["-m", "bramley.router"], context("router", "router"), settings)
    node = rpc.new_server()
    node_pb2_grpc.add_NodeServiceServicer_to_server(Node(told), node)
    rpc.bind(node, f"unix:{folder}/node.sock")
    await node.start()
    try:
        async with (
            rpc.open_channel(addresses["grpc"]) as public,
            rpc.open_channel(told.address) as private,
        ):
            through = router_pb2_grpc.RouterServiceStub(public)
            await _until_ready(through)
            direct = worker_pb2_grpc.WorkerServiceStub(private)
            yield Setup(psutil.Process(router.pid), through, direct)
    finally:
        for process in (router, worker):
            process.terminate()
            await process.wait()
        await node.stop(None)
        shutil.rmtree(folder)


async def _until_ready(stub: "RouterServiceAsyncStub") -> None:
    request = router_pb2.GetModelRequest(model=MODEL)
    while (await stub.GetModel(request)).model.state != types_pb2.MODEL_STATE_READY:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
