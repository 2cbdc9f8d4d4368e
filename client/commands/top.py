"""``bramley top``: models, workers and cache at a glance, drawn anew each second."""

import time
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.status import ClusterStatus, cluster_status
from bramley.client.node import NoCluster

if TYPE_CHECKING:
    from rich.console import Console

    from bramley.client.cache import StoreStats
    from bramley.client.overview import Sample

_ANSWER_S = 2.0
_LOOK_BACK = 60  # samples


def top(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print one, and end; so it is in a pipe, too.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two.", min=0.1, max=60.0)] = 1.0,
) -> None:
    """Watch models, workers and the cache; Ctrl-C ends it."""
    from rich.console import Console  # noqa: PLC0415

    from bramley.client.commands.glance import drawn  # noqa: PLC0415

    state_dir: Path = context.obj
    console = Console(highlight=False)
    samples = deque([_sample(state_dir)], maxlen=_LOOK_BACK)
    if samples[0].status.state == "stopped":  # later on it may come back
        raise NoCluster(state_dir)
    with suppress(KeyboardInterrupt):
        if once or not console.is_terminal:
            time.sleep(every)
            samples.append(_sample(state_dir))
            console.print(drawn(samples, console.width))
        else:
            _watch(console, samples, state_dir, every)


def _watch(console: "Console", samples: "deque[Sample]", state_dir: Path, every_s: float) -> None:
    from rich.live import Live  # noqa: PLC0415

    from bramley.client.commands.glance import drawn  # noqa: PLC0415

    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn(samples, console.width), refresh=True)
            time.sleep(every_s)
            samples.append(_sample(state_dir))


def _sample(state_dir: Path) -> "Sample":
    from bramley.client.overview import Exposition, Sample  # noqa: PLC0415 -- after --help

    status = cluster_status(state_dir)
    metrics = Exposition(_scrape(status.addresses["http"]))
    return Sample(at_s=time.monotonic(), status=status, metrics=metrics, store=_store(status))


def _scrape(address: str | None) -> str:
    """Read the router's metrics; nothing, if it shows none."""
    if not address:
        return ""
    connection = HTTPConnection(address, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return text if answer.status == 200 else ""


def _store(status: ClusterStatus) -> "StoreStats | None":
    from bramley.client.store import Store  # noqa: PLC0415 -- gRPC
    from bramley.common.errors import StoreLost  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    for process in status.processes:
        if process.role == "store" and process.address:
            with suppress(StoreLost, RemoteError), Store(process.address) as store:
                return store.stats(_ANSWER_S)
    return None
