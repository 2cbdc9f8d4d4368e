"""Sends what was said, as ASGI has it, and notices who leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bramley.router.gateway.failures import Failure

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
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    if failure.status in {401, 413, 415, 503}:  # the body may be unread
        headers["connection"] = "close"
    if request_id:
        headers["x-request-id"] = request_id
    return Response(body, failure.status, headers, media_type="application/json")


async def send_start(
    send: Send, status: int, media_type: str, headers: tuple[tuple[str, str], ...]
) -> None:
    """Send a status and headers."""
    all_headers = [("content-type", media_type), ("cache-control", "no-store"), *headers]
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in all_headers]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


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
