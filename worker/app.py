"""Puts a worker together: sockets first, then the model, then requests, then a good end."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from time import monotonic

from grpc_health.v1 import health_pb2

from bramley.cachestore.client import StoreClient
from bramley.common import rpc
from bramley.common.child import Child, ChildContext
from bramley.common.ids import model_of
from bramley.common.logs import facts
from bramley.common.main import leave, run_child
from bramley.protos.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from bramley.worker.board import Board
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Output
from bramley.worker.loading import Loaded, backend, load, numerics_of
from bramley.worker.models.blas import Blas, forget_blas
from bramley.worker.models.errors import ModelError
from bramley.worker.server import WorkerServicer
from bramley.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

EXIT_BAD_MODEL = 4
DRAIN_S = 10.0
DRAIN_AND_SAVE_S = 15.0  # what the store has refused so far is saved in what remains of it
STOP_S = 8.0  # a large model takes seconds to be freed
STORE_LINK_S = 1.0
SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name


def main(blas: Blas) -> int:
    """Run one worker to its end and return the exit code."""
    return run_child("worker", WorkerSettings, functools.partial(_serve, blas))


async def _serve(blas: Blas, context: ChildContext, settings: WorkerSettings) -> None:
    (log.warning if blas.warning else log.info)("%s", blas.warning or f"matrices by {blas.name}")
    child = Child(context)
    server = rpc.new_server()
    health = rpc.add_health(server)
    await health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    store = StoreClient.connect(f"unix:{context.run_dir}/store.sock", context.name)
    worker = Worker(settings, blas, _info(context, blas), store)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker.servicer, server)
    rpc.add_reflection(server, [SERVICE])
    rpc.bind(server, context.socket)
    await server.start()
    child.ready({"socket": context.socket})
    worker.engine.start()
    stopped = asyncio.create_task(child.until_stopped())
    await asyncio.wait([stopped, worker.loaded], return_when=asyncio.FIRST_COMPLETED)
    if worker.loaded.done():
        await _linked(store, context)
        worker.servicer.serve(worker.loaded.result())
        child.works()
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
    log.info("stopping: %s", await stopped)
    if not worker.loaded.done():
        forget_blas()
        leave(0)  # inside a load that nobody waits for any more
    until_s = monotonic() + DRAIN_AND_SAVE_S
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await worker.servicer.drain()
    if owed := await worker.servicer.save_owed(until_s - monotonic()):
        log.warning("not all conversations are stored", extra=facts(owed=owed))
    await worker.servicer.close()
    await server.stop(1.0)
    worker.engine.stop(STOP_S)  # or not: it may be inside a long step
    forget_blas()


async def _linked(store: StoreClient, context: ChildContext) -> None:
    """Give a store that is there its moment, or the first requests after a start would miss."""
    if Path(context.run_dir, "store.sock").exists():  # noqa: ASYNC240 a moment
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_LINK_S):
                await store.linked()


class Worker:
    """The engine and the servicer, each told of the other. Make it on the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        blas: Blas,
        info: worker_pb2.InfoResponse,
        store: StoreClient,
    ) -> None:
        self._settings = settings
        self._numerics = numerics_of(blas)
        self._loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[Loaded] = self._loop.create_future()
        self.engine = Engine(self._load, settings, self._deliver)
        self._board = Board(self.engine.counters, store.lookups)
        self.servicer = WorkerServicer(self.engine, self._board, info, store)

    # On the engine's thread:

    def _load(self) -> Executor:
        try:
            executor, loaded = load(self._settings, self._numerics, self._progress)
        except ModelError as error:
            log.critical("%s", error)
            leave(EXIT_BAD_MODEL)
        self._loop.call_soon_threadsafe(self.loaded.set_result, loaded)
        return executor

    def _progress(self, state: types_pb2.ModelState.ValueType, share: float) -> None:
        self._loop.call_soon_threadsafe(self._board.loading, state, share)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        self._loop.call_soon_threadsafe(self.servicer.deliver, outputs)


def _info(context: ChildContext, blas: Blas) -> worker_pb2.InfoResponse:
    packages = ("bramley", "mlx", "mlx-lm", "transformers", "grpcio")
    return worker_pb2.InfoResponse(
        model=model_of(context.name),
        epoch=context.epoch,
        backend=backend(),
        blas=blas.name if backend() == "cpu" else "",
        versions={package: metadata.version(package) for package in packages},
    )
