"""Says on stdout, in a line each, when a node in the foreground serves and its models do."""

import asyncio
from typing import Final

from bramley.client.client import AsyncClient
from bramley.client.cluster import Model
from bramley.common.status import RemoteError
from bramley.deploy.keeper import ROUTER, Keeper

_POLL_S = 0.25
# Nothing more comes of these by itself; one that is unloaded may never be asked for.
_SETTLED: Final = frozenset({"ready", "degraded", "failed", "unloaded"})


async def tell(keeper: Keeper) -> None:
    """Tell of the router when it is ready, and of the models once they serve or have failed.

    It ends when no model is being loaded: later loads are told in the log alone.
    """
    await keeper.changes.until(lambda: keeper.is_running(ROUTER))
    addresses = keeper.router_addresses
    metrics = f", metrics at http://{addresses['http']}/metrics" if addresses.get("http") else ""
    _say(f"serving gRPC at {addresses['grpc']}{metrics}")
    async with AsyncClient(addresses.get("socket") or addresses["grpc"]) as client:
        told: set[str] = set()
        while True:
            try:
                models = await client.list_models()
            except RemoteError:  # it is coming back, or all is ending
                models = None
            for model in models or ():
                if model.name not in told and (sentence := _sentence(model)):
                    told.add(model.name)
                    _say(sentence)
            if models is not None and all(model.state in _SETTLED for model in models):
                return
            await asyncio.sleep(_POLL_S)


def _sentence(model: Model) -> str:
    if model.state == "failed":
        return f"model {model.name} has failed: {model.reason}"
    return f"model {model.name} is ready" if model.state in {"ready", "degraded"} else ""


def _say(sentence: str) -> None:
    print(f"bramley: {sentence}", flush=True)  # noqa: T201
