"""The Python client and the ``bramley`` command line.

``from bramley.client import AsyncClient, Client``. Both are looked up late, so that the
command line can start without gRPC.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bramley.client.client import AsyncClient
    from bramley.client.sync import Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    if name == "AsyncClient":
        from bramley.client.client import AsyncClient  # noqa: PLC0415

        return AsyncClient
    if name == "Client":
        from bramley.client.sync import Client  # noqa: PLC0415

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
