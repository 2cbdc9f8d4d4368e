"""What the gateway serves: each path, its dialect, and how both are refused."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bramley.common.errors import BramleyError
from bramley.router.gateway.anthropic import messages
from bramley.router.gateway.anthropic.count_tokens import Counting
from bramley.router.gateway.calls import Calls
from bramley.router.gateway.dialect import Dialect
from bramley.router.gateway.failures import Failure, NoSuchMethod, NoSuchPath, failure_of
from bramley.router.gateway.generating import Generating
from bramley.router.gateway.openai import (
    chat,
    completions,
    embeddings,
    objects,
    responses_failures,
)
from bramley.router.gateway.openai.embeddings import Embeddings
from bramley.router.gateway.openai.models import Catalogue
from bramley.router.gateway.openai.responses_paths import Responses
from bramley.router.gateway.openai.stored import Stored
from bramley.router.gateway.replies import refused

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Refusal = Callable[[Failure], bytes]


def routes(calls: Calls, now: int, stored: Stored) -> Sequence[BaseRoute]:
    """Make the routes of every dialect.

    Args:
        calls: of the router.
        now: seconds since 1970, when the router began.
        stored: where answers are kept to be gone on from.

    Returns:
        What is to be mounted beside the router's own paths.
    """
    catalogue = Catalogue(calls, now)
    dialects = {
        "/chat/completions": chat.DIALECT,
        "/completions": completions.DIALECT,
        "/messages": messages.DIALECT,
    }
    generating = [
        Route(path, _guarded(_generation(calls, dialect), dialect.refusal), methods=["POST"])
        for path, dialect in dialects.items()
    ]
    served = Starlette(
        routes=[
            *generating,
            Route(
                "/messages/count_tokens",
                _guarded(Counting(calls).count, messages.DIALECT.refusal),
                methods=["POST"],
            ),
            *_responses(Responses(calls, stored)),
            Route(
                "/embeddings",
                _guarded(Embeddings(calls).create, embeddings.refusal),
                methods=["POST"],
            ),
            Route("/models", _guarded(catalogue.list, objects.refusal)),
            Route("/models/{model:path}", _guarded(catalogue.retrieve, objects.refusal)),
        ],
        exception_handlers={HTTPException: unserved},
    )
    return [Mount("/v1", served)]


def _responses(served: Responses) -> Iterator[BaseRoute]:
    for path, endpoint, method in (
        ("", served.create, "POST"),
        ("/{id}", served.retrieve, "GET"),
        ("/{id}", served.delete, "DELETE"),
        ("/{id}/input_items", served.input_items, "GET"),
    ):
        guarded = _guarded(endpoint, responses_failures.refusal)
        yield Route(f"/responses{path}", guarded, methods=[method])


def _generation(calls: Calls, dialect: Dialect) -> Endpoint:
    async def endpoint(request: Request) -> ASGIApp:
        caller = calls.admit(request)
        return Generating(calls, caller, dialect, await calls.read(request, dialect))

    return endpoint


def _guarded(endpoint: Endpoint, refusal: Refusal) -> Endpoint:
    async def guarded(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except BramleyError as error:
            return _refused(error, refusal)
        except ClientDisconnect:
            return _nothing

    return guarded


def _refused(error: BramleyError, refusal: Refusal) -> Response:
    failure = failure_of(error)
    return refused(failure, refusal(failure))


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer who has left."""


def refused_at(path: str, error: BramleyError) -> Response:
    """Refuse a request in the words of its path's dialect."""
    is_messages = f"{path}/".startswith("/v1/messages/")
    return _refused(error, messages.DIALECT.refusal if is_messages else objects.refusal)


async def unserved(request: Request, error: Exception) -> Response:
    """Refuse a path that is not there, or not for this method."""
    assert isinstance(error, HTTPException), "it is the handler of these alone"
    path = request.url.path
    if error.status_code == 405:
        return refused_at(path, NoSuchMethod(f"{path} is not for {request.method}"))
    return refused_at(path, NoSuchPath(f"nothing is served at {path}"))
