"""A router as a whole: binds, serves, then watches the node; stops in good order."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CollectorRegistry, start_http_server

from bramley.common.errors import CannotListen, SettingsError
from bramley.common.logs import facts
from bramley.common.rpc import add_health, add_reflection, bind, new_server
from bramley.protos.v1 import router_pb2, router_pb2_grpc
from bramley.router.fleet import WorkerView
from bramley.router.server import RouterServer
from bramley.router.settings import RouterSettings
from bramley.router.watch import Watch

if TYPE_CHECKING:
    from grpc_health.v1._async import HealthServicer

log = logging.getLogger(__name__)

SERVICE = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
STOP_GRACE_S = 1.0


class Router:
    """One router.

    Attributes:
        server: its public service.
        watch: what it knows of its workers.
        addresses: where it answers, by kind.
    """

    def __init__(self, settings: RouterSettings, socket: str, epoch: int) -> None:
        self._settings = settings
        self._socket = socket
        self.watch = Watch(settings.node, settings.models, settings.replicas, self._worker_changed)
        self.server = RouterServer(settings, epoch, self.watch)
        self.addresses: dict[str, str] = {}
        self._news = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Serve for the length of the block.

        Yields:
            Once it does.

        Raises:
            CannotListen: an address is not to be had.
            SettingsError: an address is none.
        """
        host, _ = _host_and_port("grpc", self._settings.grpc)
        grpc_server = new_server()
        router_pb2_grpc.add_RouterServiceServicer_to_server(self.server, grpc_server)
        health = add_health(grpc_server)
        add_reflection(grpc_server, [SERVICE])
        port = bind(grpc_server, self._settings.grpc)
        bind(grpc_server, self._socket)
        async with _metrics_server(self._settings.http, self.server.metrics.registry) as http:
            self.addresses = {"grpc": f"{host}:{port}", "http": http, "socket": self._socket}
            await self._tell(health)
            await grpc_server.start()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self.watch.run()),
                    tasks.create_task(self._keep_telling(health)),
                    tasks.create_task(self._tell_of_drain(health)),
                ]
                try:
                    yield
                finally:
                    await grpc_server.stop(STOP_GRACE_S)
                    for task in running:
                        task.cancel()

    async def drain(self) -> None:
        """Admit nothing more; give what runs its time."""
        log.info("draining", extra=facts(requests=len(self.server.registry)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await self.server.drain()

    def _worker_changed(self, view: WorkerView, before: WorkerView) -> None:
        self.server.worker_changed(view, before)
        if view.is_ready != before.is_ready:
            self._news.set()

    async def _keep_telling(self, health: "HealthServicer") -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._tell(health)

    async def _tell_of_drain(self, health: "HealthServicer") -> None:
        await self.server.drain_begun.wait()
        await health.enter_graceful_shutdown()  # for every name, for good

    async def _tell(self, health: "HealthServicer") -> None:
        await health.set(SERVICE, HealthCheckResponse.SERVING)
        for name, gate in self.server.gates.items():
            serving = HealthCheckResponse.SERVING
            silent = HealthCheckResponse.NOT_SERVING
            await health.set(f"model/{name}", serving if gate.view.is_ready else silent)


@asynccontextmanager
async def _metrics_server(address: str, registry: CollectorRegistry) -> AsyncGenerator[str]:
    if not address:
        yield ""
        return
    host, port = _host_and_port("http", address)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise CannotListen(address, error) from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)  # its thread looks twice a second
        server.server_close()


def _host_and_port(key: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(key, f"{address!r} is not host:port")
    return host, int(port)
