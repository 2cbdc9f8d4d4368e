"""Does what a dialect asks for: looks who asks, reads the body, calls the router.

The router is called as any client calls it, so that whatever it decides is decided once: who may,
how much, in which order.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import time
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from starlette.requests import Request

from bramley.common import auth, bounds
from bramley.common.errors import InvalidRequest, Overloaded
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.access import Identity
from bramley.router.gateway import bodies
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.failures import BodyTooLarge, NotJson
from bramley.router.gateway.replies import hurry

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub

Identify = Callable[[str | None], Identity]
Metadata = tuple[tuple[str, str], ...]
_Read = TypeVar("_Read")

BODY_BYTES_MAX: Final = bounds.REQUEST_BYTES_MAX
BODIES_BYTES_MAX: Final = 256 << 20  # of all requests that are being read
BODY_S: Final = 60.0  # for a body to arrive
_INLINE_BYTES_MAX = 64 << 10  # of a body that is read on the event loop
_TOKEN_MAX = 1024
_TIMEOUT_MAX_S = 86400.0
_ID_MAX = bounds.KEY_MAX
_PASSED_ON = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request's headers say.

    Attributes:
        metadata: that its calls carry.
        request_id: its own name for the request; empty where it has none.
        timeout_s: after which it does not want an answer any more; None for never.
        holder: of its token; empty where none is asked for.
    """

    metadata: Metadata
    request_id: str
    timeout_s: float | None
    holder: str = ""


def caller_of(request: Request, holder: str = "") -> Caller:
    """Read the headers of a token's holder.

    Returns:
        What they say.

    Raises:
        InvalidRequest: a header is not right.
    """
    token = token_of(request)
    carried = [
        (name, value)
        for name in _PASSED_ON
        if (value := request.headers.get(name)) and value.isascii() and value.isprintable()
    ]
    return Caller(
        metadata=(*(auth.metadata_of(token) if token else ()), *carried),
        request_id=request.headers.get("x-request-id", "")[: _ID_MAX + 1],
        timeout_s=_timeout_s(request.headers.get("x-request-timeout")),
        holder=holder,
    )


def token_of(request: Request) -> str | None:
    """Find the key of a request, in either of its headers; None without one, or with two."""
    found = {key.strip() for key in request.headers.getlist("x-api-key")}
    for value in request.headers.getlist("authorization"):
        found.add(auth.token_in([("authorization", value)]) or "")
    token = found.pop() if len(found) == 1 else ""
    # What no call can carry is nobody's token.
    can_be_carried = token.isascii() and token.isprintable() and len(token) <= _TOKEN_MAX
    return token if token and can_be_carried else None


def _timeout_s(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        timeout_s = float(header)
    except ValueError:
        timeout_s = 0.0
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise InvalidRequest("x-request-timeout", "is no number of seconds")
    return min(timeout_s, _TIMEOUT_MAX_S)


class Calls:
    """Makes calls of the router for HTTP requests.

    Args:
        stub: of the router.
        identify: tells who holds a token, and raises for nobody; None asks for none.

    Attributes:
        reading_bytes: of all bodies that are being read.
    """

    def __init__(self, stub: "RouterServiceAsyncStub", identify: Identify | None) -> None:
        self.stub = stub
        self._identify = identify
        self.reading_bytes = 0
        self._large = asyncio.Semaphore(1)

    def admit(self, request: Request) -> Caller:
        """Look who asks, before anything else of it is read.

        Returns:
            What its calls carry.

        Raises:
            Unauthenticated: nobody.
            InvalidRequest: a header is not right.
        """
        if self._identify is None:
            return caller_of(request)
        return caller_of(request, self._identify(token_of(request)).name)

    async def read(self, request: Request, dialect: Dialect) -> Asked:
        """Read a body that asks for a generation, as ``understand`` does."""
        return await self.understand(request, partial(_read, dialect, int(time())))

    async def understand(self, request: Request, reader: Callable[[object], _Read]) -> _Read:
        """Read a body and understand it.

        Args:
            request: that it is of.
            reader: of its plain values.

        Returns:
            What it asks for.

        Raises:
            BramleyError: it is too large, of another type, or not right.
        """
        _check_type(request)
        async with self._body(request) as body:
            read = partial(_understood, body, reader)
            if len(body) <= _INLINE_BYTES_MAX:
                return read()
            async with self._large:  # on a thread: streams are forwarded meanwhile
                return await asyncio.to_thread(read)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncGenerator[bytes]:
        """Read a body; it counts until the end of the block."""
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > BODY_BYTES_MAX:
            raise _too_large()
        hurry(request.scope, BODY_S)
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                self.reading_bytes += len(part)
                if len(body) > BODY_BYTES_MAX:
                    raise _too_large()
                if self.reading_bytes > BODIES_BYTES_MAX:
                    raise Overloaded(
                        "too many bytes of requests are being read",
                        reason="TOO_MANY_BYTES",
                        retry_after_s=1.0,
                    )
            hurry(request.scope, None)
            yield bytes(body)
        finally:
            self.reading_bytes -= len(body)

    async def responses(
        self, request: generation_pb2.GenerateRequest, caller: Caller
    ) -> AsyncGenerator[router_pb2.GenerateResponse]:
        """Call Generate; leaving the generator ends the call.

        Yields:
            Each response.

        Raises:
            RemoteError: what the router answered with instead.
        """
        call = self.stub.Generate(request, metadata=caller.metadata, timeout=caller.timeout_s)
        try:
            with remote_errors():
                while isinstance(response := await call.read(), router_pb2.GenerateResponse):
                    yield response
        finally:
            call.cancel()


@contextmanager
def remote_errors() -> Generator[None]:
    """Raise what the router answered with as RemoteError.

    Yields:
        Nothing.

    Raises:
        RemoteError: the call ended with a status that is not OK.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise RemoteError(error) from error


def _check_type(request: Request) -> None:
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    name, _, charset = rest.strip().partition("=")
    is_utf8 = name.lower() != "charset" or charset.strip('"').lower() in {"utf-8", "utf8"}
    if kind.strip().lower() != "application/json" or not is_utf8:
        raise NotJson("the header content-type has to be application/json, in UTF-8")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise NotJson("a body in a content-encoding is not read")


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {BODY_BYTES_MAX} bytes")


def _understood(body: bytes, reader: Callable[[object], _Read]) -> _Read:
    try:
        return reader(bodies.decode(body))
    except RecursionError as error:
        raise InvalidRequest(bodies.BODY, "is nested too deep") from error


def _read(dialect: Dialect, now: int, value: object) -> Asked:
    asked = dialect.read(value, now)
    if sum(request.ByteSize() for request in asked.requests) > bounds.REQUEST_BYTES_MAX:
        raise _too_large()
    return asked
