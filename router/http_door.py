"""What each HTTP request passes before it is served: counted, then asked whence it comes."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bramley.common.errors import BramleyError
from bramley.router import families
from bramley.router.origins import check_host, check_origin

Refuse = Callable[[str, BramleyError], Response]
Hosts = Callable[[], Collection[str]]

OURS = ("/metrics", "/healthz", "/readyz")
API = "/v1/"


def around(
    made: Mapping[str, Any],
    routes: Sequence[BaseRoute],
    is_local: bool,
    hosts: Hosts,
    refuse: Refuse,
) -> Sequence[Middleware]:
    """Make the layers around an application, the outermost first.

    Args:
        made: the router's metrics, by their names in its table.
        routes: that are served, beside the three that are always there.
        is_local: whether it is reached on loopback alone.
        hosts: tells whose names and pages are let in beside our own.
        refuse: says at a path why not.

    Returns:
        Them.
    """
    return [
        Middleware(_Counted, made=made, paths=Paths(routes)),
        Middleware(_Guarded, is_local=is_local, hosts=hosts, refuse=refuse),
    ]


class Paths:
    """The routes that are served: a closed set, as labels of metrics have to be."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._exact = {*OURS}
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        for path, pattern in _paths(routes):
            if "{" in path:
                self._patterns.append((pattern, path))
            else:
                self._exact.add(path)

    def label(self, path: str) -> str:
        """Name the route of a path; all that are none have one name."""
        if path in self._exact:
            return path
        for pattern, name in self._patterns:
            if pattern.fullmatch(path):
                return name
        return families.OTHER


def _paths(routes: Sequence[BaseRoute], at: str = "") -> Iterator[tuple[str, re.Pattern[str]]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _paths(route.routes, at + route.path)
        elif isinstance(route, Route):
            path = at + re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
            yield path, re.compile(re.escape(at) + route.path_regex.pattern.removeprefix("^"))


class _Counted:
    """Counts requests, and times how soon their answers begin."""

    def __init__(self, app: ASGIApp, made: Mapping[str, Any], paths: Paths) -> None:
        self._app = app
        self._paths = paths
        self._first_byte, self._ended = made["http_first_byte_seconds"], made["http_requests_total"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = self._paths.label(scope["path"])
        begun_s, status = perf_counter(), families.NO_STATUS

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = f"{message['status'] // 100}xx"
                if path.startswith(API):
                    self._first_byte.labels(path).observe(perf_counter() - begun_s)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            self._ended.labels(path, status).inc()


class _Guarded:
    """Refuses what a browser asks in the name of somebody else's page, without reading it."""

    def __init__(self, app: ASGIApp, is_local: bool, hosts: Hosts, refuse: Refuse) -> None:
        self._app = app
        self._is_local = is_local
        self._hosts = hosts
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, hosts = headers.get("host"), self._hosts()
            try:
                if self._is_local:
                    check_host(host, hosts)
                check_origin(headers.get("origin"), host, hosts)
            except BramleyError as error:
                app = self._refuse(scope["path"], error)
        await app(scope, receive, send)
