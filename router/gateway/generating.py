"""Makes one answer of its calls, and sends what is said of it as long as its client is there.

A client that leaves takes its calls along. One that does not read holds up its own calls alone:
the router keeps ``backlog_bytes`` of each answer, and the connection has ``SEND_S`` for each part
that it is sent.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from bramley.common.errors import BramleyError
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gateway.calls import Caller, Calls
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.failures import failure_of, named
from bramley.router.gateway.replies import SEND_S, Reply, hurry, refused, while_there


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
            failure = named(failure_of(_first(errors), self._request_id), self._asked.names)
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
