"""The kill matrix: every process, every way of failing, every phase of a request.

In each cell no call hangs, each request ends once and as it should, what is answered is right,
a new request is served again in time, and nothing is left. tests/support/matrix.py says which
end is the right one; docs/testing.md has the results.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import psutil
import pytest

from bramley.common.status import RemoteError
from support.baseline import at_rest, strays
from support.cluster import is_alive
from support.matrix import (
    BEGIN,
    CALL_S,
    END,
    FAULTS,
    MODEL,
    OK,
    PHASES,
    REFUSALS,
    VICTIMS,
    Arena,
    Cell,
    Scene,
)

Processes = dict[tuple[str, str], int]
SUPERVISOR = ("supervisor", "supervisor")
# The others are slow: `make test-all`. SIGKILL is in test_kills.py, too, a worker that is stopped
# in test_health.py, a supervisor that is in deploy/test_takeover.py, one that ends in
# test_orphans.py, a store that stands still in cachestore/test_store_hangs.py.
QUICK = {
    "worker-blocked-decode",
    "router-stopped-decode",
    "router-blocked-queued",
    "store-killed-prefill",
}
CELLS = [Cell(*each) for each in itertools.product(VICTIMS, FAULTS, PHASES)]
assert {str(cell) for cell in CELLS} >= QUICK


@pytest.fixture(scope="module")
async def arena(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Arena]:
    """A cluster for this file alone."""
    made = Arena(tmp_path_factory.mktemp("matrix"))
    yield made
    await made.close()


def parameters() -> list[Any]:
    return [
        pytest.param(cell, id=str(cell), marks=[] if str(cell) in QUICK else pytest.mark.slow)
        for cell in CELLS
    ]


@pytest.mark.parametrize("cell", parameters())
async def test_a_cell_of_the_kill_matrix(
    arena: Arena, cell: Cell, record_property: Callable[[str, object], None]
) -> None:
    try:
        row = await run(await arena.scene(), cell)
    except BaseException:
        await arena.discard()
        raise
    record_property("row", json.dumps(row))


async def run(scene: Scene, cell: Cell) -> dict[str, object]:
    """Play a cell: what came of it."""
    cluster = scene.served.cluster
    await scene.reach(cell.phase)
    before = processes(scene)
    key = SUPERVISOR if cell.victim == "supervisor" else name_of(cell)
    victim = psutil.Process(before[key])
    victim.send_signal(BEGIN[cell.fault])
    scene.calm()
    # Whom nobody replaces does not end.
    coming = asyncio.create_task(scene.newcomer(lambda: cell.is_paused or not is_alive(victim.pid)))
    await go_on(scene, cell, victim)
    told = f"{cell}: no new request is served"
    tries, back_s = await cluster.within(coming, lambda: told, CALL_S)
    await scene.ended()
    if cell.victim == "supervisor" and cell.fault == "killed":
        await cluster.up()
    expected = replaced_by(cell, before)
    await settled(scene, {key: before[key] for key in expected})
    after = processes(scene)

    assert back_s < cell.back_s, tries
    refused = sorted(set(tries) - {OK})
    assert REFUSALS.issuperset(refused), tries
    for one in scene.asked:
        one.check_ended_once()
        assert one.status == cell.status_of(one.role), one
        assert one.seconds < CALL_S
        if one.status == OK:
            await one.check_right(scene.served.client)
    assert before.keys() == after.keys()
    replaced = {key for key, pid in before.items() if after[key] != pid}
    assert replaced == expected
    await at_rest(scene.served)
    assert not strays(scene.served)
    return {
        "cell": [cell.victim, cell.fault, cell.phase],
        "ends": {one.role: one.status for one in scene.asked},
        "refused": refused,
        "back_s": round(back_s, 1),
    }


def name_of(cell: Cell) -> tuple[str, str]:
    return ("worker", MODEL) if cell.victim == "worker" else (cell.victim, cell.victim)


def processes(scene: Scene) -> Processes:
    cluster = scene.served.cluster
    return {**cluster.children(), SUPERVISOR: cluster.supervisor.pid}


async def go_on(scene: Scene, cell: Cell, victim: psutil.Process) -> None:
    """Do what an operator does, or time: nothing for a worker, a router or a store that died."""
    cluster = scene.served.cluster
    if cell.is_paused:
        await asyncio.sleep(cell.pause_s)  # how long is what is tried
        victim.send_signal(END[cell.fault])
    elif cell.victim == "supervisor" and cell.fault == "terminated":
        addresses = cluster.node.addresses
        assert await cluster.ended() == 0
        cluster.check_nothing_left()
        await cluster.up("--grpc", addresses["grpc"], "--http", addresses["http"])


def replaced_by(cell: Cell, all_: Processes) -> set[tuple[str, str]]:
    """Which processes are others afterwards."""
    if cell.is_paused:
        return set()
    if cell.victim == "supervisor":
        return {SUPERVISOR} if cell.fault == "killed" else set(all_)
    return {name_of(cell)}


async def settled(scene: Scene, gone: Processes) -> None:
    """Wait until others run in the place of those that are gone, and every model is ready."""
    cluster = scene.served.cluster

    async def wait() -> None:
        while not await is_ready():  # noqa: ASYNC110 of processes
            await asyncio.sleep(0.05)

    async def is_ready() -> bool:
        now = processes(scene)
        if any(now.get(key, pid) == pid for key, pid in gone.items()):
            return False
        try:
            await scene.served.ready()
        except RemoteError:
            return False
        return True

    await cluster.within(wait())
    for role, name in (("router", "router"), ("store", "store"), ("worker", MODEL)):
        await cluster.running(role, name)
