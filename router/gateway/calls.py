"""Does what a dialect asks for: reads the body, calls the router, sends what is said, or leaves.

The router is called as any client calls it, so that whatever it decides is decided once: who may,
how much, in which order. A client that leaves takes its call along. One that does not read holds
up its own call alone: the router keeps ``backlog_bytes`` of its answer, and the connection has
``SEND_S`` for each part that it is sent.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import time
from typing import TYPE_CHECKING, Final

import grpc
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from bramley.common import auth, bounds
from bramley.common.errors import BramleyError, InvalidRequest, Overloaded
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.access import Identity
from bramley.router.gateway import bodies
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.failures import BodyTooLarge, NotJson, failure_of
from bramley.router.gateway.replies import SEND_S, Reply, hurry, refused, while_there

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub

Identify = Callable[[str | None], Identity]
Metadata = tuple[tuple[str, str], ...]

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
        """Read a body and understand it.

        Returns:
            What it asks for.

        Raises:
            BramleyError: it is too large, of another type, or not right.
        """
        _check_type(request)
        async with self._body(request) as body:
            read = partial(_read, body, dialect, int(time()))
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


def _read(body: bytes, dialect: Dialect, now: int) -> Asked:
    try:
        asked = dialect.read(bodies.decode(body), now)
    except RecursionError as error:
        raise InvalidRequest(bodies.BODY, "is nested too deep") from error
    if sum(request.ByteSize() for request in asked.requests) > bounds.REQUEST_BYTES_MAX:
        raise _too_large()
    return asked


class Generating:
    """One answer, of one call or several side by side: an ASGI application."""

    def __init__(self, calls: Calls, caller: Caller, dialect: Dialect, asked: Asked) -> None:
        self._calls = calls
        self._caller = caller
        self._dialect = dialect
        self._asked = asked
        self._request_id = caller.request_id
        self._turn = asyncio.Lock()  # to add a response and say what comes of it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as long as somebody is there."""
        await while_there(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._asked.answer
        reply = Reply(scope, send, answer.media_type)
        try:
            async with reply.kept_alive(), asyncio.TaskGroup() as group:
                for place, request in enumerate(self._named()):
                    group.create_task(self._follow(request, place, reply))
            await reply.say(answer.end(), is_last=True)
        except* BramleyError as errors:
            hurry(scope, SEND_S)
            failure = failure_of(_first(errors), self._request_id)
            if reply.is_begun:
                await reply.say(answer.fail(failure), is_last=True)
            else:
                body = self._dialect.refusal(failure)
                await refused(failure, body, self._request_id)(scope, receive, send)

    def _named(self) -> Iterator[generation_pb2.GenerateRequest]:
        """Give each call its name: no two may have the same."""
        name, requests = self._caller.request_id, self._asked.requests
        for place, request in enumerate(requests):
            request.request_id = f"{name}.{place}" if name and len(requests) > 1 else name
            yield request

    async def _follow(
        self, request: generation_pb2.GenerateRequest, place: int, reply: Reply
    ) -> None:
        first = place * (request.n if request.HasField("n") else 1)
        async with aclosing(self._calls.responses(request, self._caller)) as responses:
            async for response in responses:
                async with self._turn:
                    self._note(response, reply)
                    if first:
                        _move(response, first)
                    if said := self._asked.answer.add(response):
                        await reply.say(said)

    def _note(self, response: router_pb2.GenerateResponse, reply: Reply) -> None:
        if response.WhichOneof("event") == "accepted" and not reply.may_begin:
            self._request_id = response.accepted.request_id
            names = (("x-request-id", self._request_id), ("request-id", self._request_id))
            reply.headers = (*names, ("x-accel-buffering", "no"))
            reply.may_begin = True


def _move(response: router_pb2.GenerateResponse, first: int) -> None:
    """Number a response's answer from ``first`` on."""
    match response.WhichOneof("event"):
        case "delta":
            response.delta.index += first
        case "finished":
            response.finished.index += first
        case _:
            pass


def _first(errors: ExceptionGroup[BramleyError]) -> BramleyError:
    error = errors.exceptions[0]
    return error if isinstance(error, BramleyError) else _first(error)
