"""OpenAI's responses: what is asked for, and what is kept of it, by its paths."""

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Final, Literal

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from bramley.common.errors import InvalidRequest
from bramley.router.gateway.calls import Calls
from bramley.router.gateway.dialect import Dialect
from bramley.router.gateway.failures import NoSuchResponse
from bramley.router.gateway.generating import Generating
from bramley.router.gateway.openai import responses, responses_failures
from bramley.router.gateway.openai.responses_items import Item
from bramley.router.gateway.openai.stored import Kept, Stored

_LIMIT_MAX: Final = 100
_LIMIT: Final = 20


class Deleted(msgspec.Struct, frozen=True):
    """What is said of an answer that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class Items(msgspec.Struct, frozen=True):
    """Some items of a conversation."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Responses:
    """Answers what has to do with responses.

    Args:
        calls: of the router.
        stored: where answers are kept; each is its key's own.
    """

    def __init__(self, calls: Calls, stored: Stored) -> None:
        self._calls = calls
        self._stored = stored

    async def create(self, request: Request) -> ASGIApp:
        """Make an answer."""
        caller = self._calls.admit(request)

        def find(name: str) -> Kept | None:
            return self._stored.find(caller.holder, name, monotonic())

        def keep(name: str, kept: Kept) -> None:
            self._stored.keep(caller.holder, name, kept, monotonic())

        read = partial(responses.read, find=find, keep=keep)
        dialect = Dialect(read, responses_failures.refusal)
        return Generating(self._calls, caller, dialect, await self._calls.read(request, dialect))

    async def retrieve(self, request: Request) -> Response:
        """Tell an answer as it was told."""
        kept = self._kept(request)
        _check_query(request.query_params, {"stream": _is_false, "include_obfuscation": _is_false})
        return Response(kept.body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget an answer. What has gone on from it has its conversation still."""
        caller, name = self._calls.admit(request), request.path_params["id"]
        if not self._stored.delete(caller.holder, name, monotonic()):
            raise _unknown(name)
        return _said(Deleted(name))

    async def input_items(self, request: Request) -> Response:
        """Tell the conversation that an answer answers, the newest first if not asked otherwise."""
        kept, query = self._kept(request), request.query_params
        _check_query(
            query, {"order": {"asc", "desc"}.__contains__, "limit": _is_limit, "after": bool}
        )
        items = [*kept.items] if query.get("order") == "asc" else [*reversed(kept.items)]
        if after := query.get("after"):
            ids = [item.id for item in items]
            if after not in ids:
                raise InvalidRequest("after", "is the id of no item of it")
            items = items[ids.index(after) + 1 :]
        data = items[: int(query.get("limit", _LIMIT))]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return _said(Items(data, first, last, has_more=len(data) < len(items)))

    def _kept(self, request: Request) -> Kept:
        caller, name = self._calls.admit(request), request.path_params["id"]
        kept = self._stored.find(caller.holder, name, monotonic())
        if kept is None:
            raise _unknown(name)
        return kept


def _unknown(name: str) -> NoSuchResponse:
    problem = "is not kept: it is none, was deleted, is too old, or another key's"
    return NoSuchResponse(f"response {name[:100]!a} {problem}")


def _check_query(query: QueryParams, known: Mapping[str, Callable[[str], bool]]) -> None:
    for name, value in query.multi_items():
        if name not in known:
            raise InvalidRequest(name, "is not known here")
        if not known[name](value):
            raise InvalidRequest(name, f"{value[:100]!a} is not served")


def _is_false(value: str) -> bool:
    return value == "false"


def _is_limit(value: str) -> bool:
    return value.isdecimal() and len(value) < 4 and 1 <= int(value) <= _LIMIT_MAX


def _said(value: Deleted | Items) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
