"""Sends what was said, as ASGI has it, and notices who leaves."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bramley.router.gateway.failures import Failure

EVENTS: Final = "text/event-stream"
COMMENT: Final = b": keep-alive\n\n"  # which readers of events pass over
BEGIN_S: Final = 10.0  # without a word, before a stream begins by a comment
KEEP_ALIVE_S: Final = 15.0  # without a word, in a stream that has begun
SEND_S: Final = 20.0  # for a client to take what it is sent


def hurry(scope: Scope, seconds: float | None) -> None:
    """Give a connection so long for its next step, or as long as it takes."""
    state = cast("dict[str, Any]", scope.get("state", {}))
    if "hurry" in state:
        state["hurry"](seconds)


def refused(failure: Failure, body: bytes, request_id: str = "") -> Response:
    """Say a failure, with what HTTP has to say of it beside its body."""
    headers = {"cache-control": "no-store"}
    if failure.retry_after_s is not None:
        headers["retry-after"] = str(failure.retry_after_s)
    if failure.status == 409:  # both vendors' clients would try it again
        headers["x-should-retry"] = "false"
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    if failure.status in {401, 403, 413, 415, 421, 503}:  # the body may be unread
        headers["connection"] = "close"
    if request_id:
        headers["x-request-id"] = headers["request-id"] = request_id
    return Response(body, failure.status, headers, media_type="application/json")


async def send_start(
    send: Send, status: int, media_type: str, headers: tuple[tuple[str, str], ...]
) -> None:
    """Send a status and headers."""
    all_headers = [("content-type", media_type), ("cache-control", "no-store"), *headers]
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in all_headers]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


class Reply:
    """A 200 that begins with the first thing that is said.

    Attributes:
        headers: to begin with.
        is_begun: whether its status is out.
        may_begin: whether a stream may begin without a word: until then a failure has its status.
    """

    def __init__(self, scope: Scope, send: Send, media_type: str) -> None:
        self._scope = scope
        self._send = send
        self._media_type = media_type
        self._sending = asyncio.Lock()
        self._said_s = monotonic()
        self.headers: tuple[tuple[str, str], ...] = ()
        self.is_begun = False
        self.may_begin = False

    async def say(self, said: bytes, *, is_last: bool = False) -> None:
        """Send something; whoever does not take it loses the connection."""
        async with self._sending:
            hurry(self._scope, SEND_S)
            if not self.is_begun:
                self.is_begun = True
                await send_start(self._send, 200, self._media_type, self.headers)
            await self._send({"type": "http.response.body", "body": said, "more_body": not is_last})
            self._said_s = monotonic()
            if not is_last:
                hurry(self._scope, None)

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None]:
        """Have a stream say that it is there, for the length of the block.

        What is between it and its client, and many a client, ends connections that are silent.
        """
        if self._media_type != EVENTS:
            yield
            return
        commenting = asyncio.create_task(self._comment())
        try:
            yield
        finally:
            commenting.cancel()
            await asyncio.gather(commenting, return_exceptions=True)

    async def _comment(self) -> None:
        while True:
            patience_s = KEEP_ALIVE_S if self.is_begun else BEGIN_S
            left_s = self._said_s + patience_s - monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            elif self._sending.locked() or not (self.is_begun or self.may_begin):
                await asyncio.sleep(patience_s)
            else:
                await self.say(COMMENT)


async def while_there(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do some work, as long as its client is there; a client that leaves ends it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
