"""What a cluster holds when nobody asks anything of it: nothing that only a request needs."""

import asyncio
import re
from pathlib import Path

from bramley.client.store import Store
from bramley.common.errors import StoreLost
from bramley.deploy.sweep import children_of
from support.served import Served

# Gauges of the router that are 0 when nothing runs.
GAUGES = (
    "bramley_router_requests_in_flight",
    "bramley_router_queue_depth",
    "bramley_router_booked_requests",
    "bramley_router_booked_prefill_tokens",
    "bramley_router_booked_memory_bytes",
)
AWAY = "the store does not answer"
LEASES = ("read_leases", "write_leases", AWAY)
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


async def page(served: Served) -> str:
    """Fetch the router's metrics."""
    host, port = served.cluster.node.addresses["http"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        return (await reader.read()).decode()
    finally:
        writer.close()


async def metric(served: Served, name: str, **labels: str) -> float:
    """Read a metric of the router, summed over all labels that are not given."""
    found = (_SAMPLE.match(line) for line in (await page(served)).splitlines())
    return sum(
        float(one[3])
        for one in found
        if one
        and one[1] == name
        and all(f'{key}="{value}"' in (one[2] or "") for key, value in labels.items())
    )


async def held(served: Served) -> dict[str, float]:
    """Tell what a router and its store hold for requests, by name; empty at rest."""
    status = await served.client.status()
    found: dict[str, float] = {
        "requests running": status.requests_running,
        "requests waiting": status.requests_waiting,
    }
    text = await page(served)
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and sample[1] in GAUGES:
            found[line] = float(sample[3])
    store = f"unix:{served.cluster.node.run_dir}/store.sock"
    if ("store", "store") in served.cluster.children():
        gauges = (await asyncio.to_thread(_store_gauges, store)).items()
        found |= {name: value for name, value in gauges if name in LEASES}
    return {name: value for name, value in found.items() if value}


def _store_gauges(target: str) -> dict[str, int]:
    try:
        with Store(target) as store:
            return store.stats(timeout_s=10.0).gauges
    except StoreLost:  # it has just been started, and is no help yet
        return {AWAY: 1}


async def at_rest(served: Served, within_s: float = 10.0) -> None:
    """Wait until nothing is held."""
    seen: list[dict[str, float]] = []

    async def wait() -> None:
        while True:
            seen[:] = [await held(served)]
            if not seen[0]:
                return
            await asyncio.sleep(0.05)

    await served.cluster.within(wait(), lambda: f"still held: {seen}", timeout_s=within_s)


def strays(served: Served) -> set[str]:
    """Name the sockets of incarnations that no longer live."""
    folder = Path(served.cluster.node.run_dir)
    lease = served.cluster.state_dir.resolve() / "lease.json"
    living = {told.epoch for _, told in children_of(lease)}
    numbers = {path.name: re.search(r"-(\d+)\.", path.name) for path in folder.iterdir()}
    return {name for name, found in numbers.items() if found and int(found[1]) not in living}
