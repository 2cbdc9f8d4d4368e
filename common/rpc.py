"""gRPC conventions of every process: options of both ends, the error boundary, health.

Both ends agree on keepalive: a client pings an idle connection every 10 s and gives the
answer 5 s (``ping_timeout_ms``: gRPC's own default of a minute hides a stopped peer);
servers take any number of pings. docs/protocol.md lists the figures.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bramley.common.errors import BramleyError, CannotListen, EngineFault, InvalidRequest
from bramley.common.status import to_status

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also what one attempt is given, handshakes and all: less than that is lost on a slow line.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # or a second server binds the same port without an error
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Open a channel; without credentials of TLS to unix sockets and loopback only."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def new_server(*inner: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
    """Make a server whose handlers, and the ``inner`` ones around them, may raise BramleyError."""
    return grpc.aio.server(interceptors=[ErrorBoundary(), *inner], options=SERVER_OPTIONS)


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Bind ``host:port``, or ``unix:path`` for this user alone; port 0 takes a free one.

    Args:
        server: that is to answer there.
        address: of this machine.
        credentials: those of TLS; without them whoever reaches the address is heard in clear.

    Returns:
        The port, or 1 for a unix socket.

    Raises:
        CannotListen: somebody else has it.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen(address, error) from error
    if port == 0:
        raise CannotListen(address, "it is in use or not ours to bind")
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).chmod(0o600)
    return port


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Let clients without our generated code discover ``services`` (full names)."""
    names = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)


def add_health(*servers: grpc.aio.Server) -> health.aio.HealthServicer:
    """Add the standard health service, one for all; its ``Watch`` follows each ``set``."""
    servicer = health.aio.HealthServicer()
    for server in servers:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # not generic at run time


class ErrorBoundary(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status: the one place that catches Exception."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _guard_unary(handler.unary_unary),
                _readable(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream),
                _readable(handler.request_deserializer),
                handler.response_serializer,
            )
        return handler


def _readable(deserializer: Any) -> Any:
    # What is raised here would reach the client as UNKNOWN, so that it is handed on instead.
    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError as error:
            return InvalidRequest("request", f"is not the message of this call: {error}")

    return deserialize


def _refuse_unreadable(request: Any) -> None:
    if isinstance(request, InvalidRequest):
        raise request


def _guard_unary(behaviour: Any) -> Any:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            _refuse_unreadable(request)
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001
            await _abort(error, context)

    return guarded


def _guard_stream(behaviour: Any) -> Any:
    # A coroutine, not a generator: gRPC drops a cancelled generator without closing it, and
    # the handler's own `finally` would wait for the garbage collector.
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            _refuse_unreadable(request)
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:  # noqa: BLE001
            await _abort(error, context)

    return guarded


async def _abort(error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, BramleyError):
        log.error("a handler failed", exc_info=error)
        error = EngineFault(f"{type(error).__name__}: {error}"[:500])
    await context.abort_with_status(to_status(error))
