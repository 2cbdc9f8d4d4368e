"""Serves the page at ``/``: files of router/page/, read once, which need nothing from elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER: Final = Path(__file__).with_name("page")
INDEX: Final = "index.html"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing of another place is loaded, run or framed, whatever a model may have written.
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",  # the next router may have another page
}


def routes() -> Sequence[BaseRoute]:
    """Read the files.

    Returns:
        Routes that serve them: to anybody, since they tell nothing of the cluster.
    """
    files = {
        file.name: (file.read_bytes(), _KINDS[file.suffix])
        for file in FOLDER.iterdir()
        if file.suffix in _KINDS
    }

    def said(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, headers=HEADERS, media_type=kind)

    async def index(_: Request) -> Response:
        return said(INDEX)

    async def file(request: Request) -> Response:
        return said(request.path_params["name"])

    return [Route("/", index), Route("/page/{name}", file)]
