"""The router's HTTP side, on its own event loop: ``/metrics``, ``/healthz`` and ``/readyz``.

An answer on ``/healthz`` proves that the loop turns; what ``/readyz`` says is decided in
router/readiness.py. None of them takes a body. What else is served is router/gateway's, and the
page of router/pages.py. Before any of it, router/http_door.py looks who asks, and counts.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bramley.common import auth
from bramley.common.errors import CannotListen, PermissionDenied, SettingsError, Unauthenticated
from bramley.router.access import Identity
from bramley.router.readiness import Readiness

Identify = Callable[[str | None], Identity]
Unserved = Callable[[Request, Exception], Awaitable[Response]]

CONNECTIONS_MAX = 512  # more are answered with 503
HEADER_BYTES_MAX = 16 << 10  # of one that has no end yet
REQUEST_S = 20.0  # for a request and its answer, however slow its client, unless it says more
STOP_S = 1  # for answers that are being sent when the router ends


def application(
    registry: CollectorRegistry,
    readiness: Callable[[], Readiness],
    identify: Identify | None = None,
    others: Sequence[BaseRoute] = (),
    around: Sequence[Middleware] = (),
    unserved: Unserved | None = None,
) -> Starlette:
    """Make what answers.

    Args:
        registry: of the metrics.
        readiness: judges the router at this moment.
        identify: tells who holds a token, and raises for nobody; None asks for none. All models
            are told of, so that it takes a token for all of them.
        others: routes beside ours, which guard themselves.
        around: what each request passes first.
        unserved: answers where nothing is served; None in Starlette's words.

    Returns:
        The application.
    """

    async def metrics(request: Request) -> Response:
        _admit(request, identify)
        encode, kind = _encoder(request.headers.get("accept", ""))
        # On a thread: there may be thousands of series, and streams are forwarded meanwhile.
        return Response(await asyncio.to_thread(encode, registry), media_type=kind)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        _admit(request, identify)
        told = readiness()
        body = msgspec.json.encode(told) + b"\n"
        return Response(body, 200 if told.ready else 503, media_type="application/json")

    bare = [Middleware(_NoBody)]
    return Starlette(
        routes=[
            Route("/metrics", metrics, middleware=bare),
            Route("/healthz", healthz, middleware=bare),
            Route("/readyz", readyz, middleware=bare),
            *others,
        ],
        middleware=around,
        exception_handlers={
            Unauthenticated: _refused,
            PermissionDenied: _refused,
            **({HTTPException: unserved} if unserved else {}),
        },
    )


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version in it is none
        return choose_encoder("")


def _admit(request: Request, identify: Identify | None) -> None:
    if identify is None:
        return
    identity = identify(auth.token_in(request.headers.items()))
    if identity.models is not None:
        raise PermissionDenied(f"the token {identity.name!r} is not for all models")


def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, Unauthenticated):
        return PlainTextResponse(f"{error}\n", 401, {"www-authenticate": "Bearer"})
    return PlainTextResponse(f"{error}\n", 403)


@asynccontextmanager
async def serving(
    address: str,
    application: ASGIApp,
    tls: ssl.SSLContext | None = None,
    connections: Gauge | None = None,
) -> AsyncGenerator[str]:
    """Serve at ``host:port`` for the length of the block; port 0 takes a free one.

    Args:
        address: of the settings.
        application: that answers.
        tls: of the connections; without it they are in the clear.
        connections: shows how many there are.

    Yields:
        The address.

    Raises:
        CannotListen: it is not to be had.
        SettingsError: it is none.
    """

    def context(*_: object) -> ssl.SSLContext:
        assert tls is not None
        return tls

    host, port = host_and_port("http", address)
    listener = _listen(host, port)
    server = _Server(
        uvicorn.Config(
            application,
            loop="none",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what strangers send is no fault of ours, and a line each
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_S,
            ssl_context_factory=context if tls else None,
        )
    )
    if connections is not None:
        connections.set_function(lambda: len(server.server_state.connections))
    told = f"{host}:{listener.getsockname()[1]}"
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield told
    finally:
        server.should_exit = True
        await task


def host_and_port(key: str, address: str) -> tuple[str, int]:
    """Take an address apart.

    Returns:
        The host, in brackets if it has colons, and the port.

    Raises:
        SettingsError: it is not ``host:port``.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(key, f"{address!r} is not host:port")
    return host, int(port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise CannotListen(f"{host}:{port}", error) from error


class _Server(uvicorn.Server):
    """One that leaves the signals of the process to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _Connection(H11Protocol):
    """One that has its time for each request, so that nobody keeps others out by being slow.

    Whoever answers may give it another: ``scope["state"]["hurry"]`` takes seconds, or None.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, "hurry": self._hurry}
        self._hurry(REQUEST_S)

    def on_response_complete(self) -> None:
        self._hurry(REQUEST_S)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._hurry(None)

    def _hurry(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self.transport.abort)


class _NoBody:
    """Refuses requests that have a body, without reading it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
                app = PlainTextResponse("no body is taken here\n", 413, {"connection": "close"})
        await app(scope, receive, send)
