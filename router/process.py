"""A router as a whole: binds, serves, then watches the node; stops in good order."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import TYPE_CHECKING

import msgspec
from grpc_health.v1.health_pb2 import HealthCheckResponse

from bramley.common.logs import facts
from bramley.common.rpc import add_health, add_reflection, bind, new_server, open_channel
from bramley.common.tls import is_local
from bramley.protos.v1 import router_pb2, router_pb2_grpc
from bramley.router import http, http_door, overview, pages
from bramley.router.describe import report
from bramley.router.door import Door
from bramley.router.fleet import WorkerView
from bramley.router.gateway import app as gateway
from bramley.router.gateway.calls import Calls
from bramley.router.gateway.openai.stored import Stored
from bramley.router.guards import Guards, guards_of
from bramley.router.metrics import Metrics
from bramley.router.models import Models
from bramley.router.pulse import beat
from bramley.router.readiness import Readiness, readiness
from bramley.router.server import RouterServer
from bramley.router.settings import RouterSettings
from bramley.router.tracers import tracing
from bramley.router.vllm_names import VllmNames
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
        models: that it serves.
        metrics: of the process.
        addresses: where it answers, by kind.
    """

    def __init__(self, settings: RouterSettings, socket: str, epoch: int) -> None:
        self._settings = settings
        self._socket = socket
        self.addresses: dict[str, str] = {}
        self._news = asyncio.Event()
        self._told = set[str]()  # services of which health has been told
        self.metrics = Metrics()
        if settings.vllm_metrics:
            self.metrics.registry.register(VllmNames(self.metrics.made))
        self.watch = Watch(
            settings.node, settings.hang_timeout_s, self._worker_changed, self._resettled
        )
        self.models = Models(settings, self.watch, self.metrics, self._news.set)
        self.server = RouterServer(settings, epoch, self.watch, self.models, self.metrics)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Serve for the length of the block.

        Yields:
            Once it does.

        Raises:
            CannotListen: an address is not to be had.
            SettingsError: an address is none, or not guarded as it should be.
        """
        host, _ = http.host_and_port("grpc", self._settings.grpc)
        guards = guards_of(self._settings)
        certificates = guards.certificates
        refused = self.server.count_refusal
        # The socket's mode says who may call there: nobody is asked for a token.
        public, private = new_server(Door(guards.tokens, refused)), new_server(Door(None, refused))
        # Whom the gateway calls for shows the same tokens as whoever calls by itself.
        gate = new_server(Door(guards.tokens, refused))
        servers = (public, private, gate)
        for server in servers:
            router_pb2_grpc.add_RouterServiceServicer_to_server(self.server, server)
            add_reflection(server, [SERVICE])
        health = add_health(*servers)
        credentials = certificates.credentials() if certificates else None
        port = bind(public, self._settings.grpc, credentials)
        bind(private, self._socket)
        bind(gate, self._gateway_socket)
        async with (
            tracing(self._settings.traces) as self.server.tracing,
            self._http(guards) as shown,
        ):
            self.addresses = {"grpc": f"{host}:{port}", "http": shown, "socket": self._socket}
            await self._tell(health)
            await asyncio.gather(*[server.start() for server in servers])
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self.watch.run()),
                    tasks.create_task(self.models.run()),
                    tasks.create_task(self._keep_telling(health)),
                    tasks.create_task(self._tell_of_drain(health)),
                    tasks.create_task(beat(self.metrics.lag, self._show_breakers)),
                ]
                try:
                    yield
                finally:
                    await asyncio.gather(*[server.stop(STOP_GRACE_S) for server in servers])
                    for task in running:
                        task.cancel()

    @asynccontextmanager
    async def _http(self, guards: Guards) -> AsyncGenerator[str]:
        if not self._settings.http:
            yield ""
            return
        identify = guards.tokens.identify if guards.tokens else None
        tls = guards.certificates.context() if guards.certificates else None
        async with open_channel(self._gateway_socket) as channel:
            stub, made = router_pb2_grpc.RouterServiceStub(channel), self.metrics.made
            calls = Calls(stub, identify)
            stored = Stored(self._settings.responses_s, self._settings.responses_bytes)
            made["http_body_bytes"].set_function(lambda: calls.reading_bytes)
            sources = overview.Sources(stub, made, lambda: self.watch.store, self.models.written)
            routes = [
                *pages.routes(),
                overview.route(calls, sources),
                *gateway.routes(calls, int(time()), stored),
            ]
            around = http_door.around(
                made, routes, is_local(self._settings.http), self._http_hosts, gateway.refused_at
            )
            application = http.application(
                self.metrics.registry,
                self._readiness,
                identify,
                routes,
                around,
                gateway.unserved,
            )
            async with http.serving(
                self._settings.http, application, tls, made["http_connections"]
            ) as address:
                yield address

    def _http_hosts(self) -> list[str]:
        return self._settings.http_hosts

    @property
    def _gateway_socket(self) -> str:
        return f"{self._socket.removesuffix('.sock')}.http"

    def _readiness(self) -> Readiness:
        models = {name: report(model) for name, model in self.models.by_name.items()}
        return readiness(models, is_draining=self.server.drain_begun.is_set())

    def _show_breakers(self) -> None:
        now_s = monotonic()
        for model in self.models.by_name.values():
            model.metrics.set_breakers(model.gate.replicas.breakers(now_s))

    async def drain(self) -> None:
        """Admit nothing more; give what runs its time."""
        log.info("draining", extra=facts(requests=len(self.server.registry)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await self.server.drain()

    def _worker_changed(self, view: WorkerView, before: WorkerView) -> None:
        self.models.worker_changed(view, before)

    def _resettled(self, settings_json: bytes) -> None:
        """Take the settings that the supervisor has read again."""
        settings = msgspec.json.decode(settings_json, type=RouterSettings)
        if settings != self._settings:
            log.info("new settings")
            self._settings = settings
            self.watch.hang_timeout_s = settings.hang_timeout_s
            self.server.apply(settings)

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
        known = dict.fromkeys(self._told, HealthCheckResponse.SERVICE_UNKNOWN)
        for name, model in self.models.by_name.items():
            serving = HealthCheckResponse.SERVING
            silent = HealthCheckResponse.NOT_SERVING
            known[f"model/{name}"] = serving if model.is_served else silent
        self._told = set(known)
        for service, status in known.items():
            await health.set(service, status)
