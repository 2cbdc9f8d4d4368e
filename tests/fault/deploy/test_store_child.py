"""The cache store as a child of the supervisor: first in, last out, and needed by nobody."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bramley.protos.v1 import node_pb2
from support.cluster import Cluster, Processes, dummy_cluster, find

Make = Callable[[str], Cluster]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


async def test_the_store_is_started_before_the_router_and_tells_both_sockets(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, store=True))
    await cluster.up()
    store = await cluster.running("store", "store")
    assert store.epoch < (await cluster.running("router", "router")).epoch
    run_dir = cluster.node.run_dir
    assert dict(store.addresses) == {
        "socket": f"unix:{run_dir}/store-{store.epoch}.sock",
        "data": f"{run_dir}/store-{store.epoch}.data",
    }
    assert store.address == store.addresses["socket"]


async def test_a_store_that_is_switched_off_does_not_run(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    assert set(cluster.children()) == {("router", "router"), ("worker", "a")}


async def test_a_killed_store_is_started_again_beside_the_others(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, store=True))
    await cluster.up()
    router = await cluster.running("router", "router")
    killed = await cluster.kill("store", "store")
    again = await cluster.running("store", "store", after=killed.epoch)
    assert (again.last_exit, again.restarts) == ("signal SIGKILL", 1)
    left = {name for name in os.listdir(cluster.node.run_dir) if name.startswith("store-")}
    sockets = {name for name in left if not name.endswith(".works")}
    assert sockets == {f"store-{again.epoch}.sock", f"store-{again.epoch}.data"}
    assert await cluster.running("router", "router") == router


@pytest.mark.parametrize("script", ["exit 7", "exit-after 7", "hang"])
async def test_router_and_workers_serve_without_a_store_that_works(
    make_cluster: Make, scripts: Path, script: str
) -> None:
    (scripts / "store-store").write_text(script)
    cluster = make_cluster(dummy_cluster(scripts, "start_timeout_s = 1", store=True))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")

    def keeps_failing(processes: Processes) -> bool:
        store = find(processes, "store", "store")
        return store is not None and store.restarts >= 1

    await cluster.until(keeps_failing)
    await cluster.running("router", "router")


async def test_a_store_without_a_program_hinders_nobody(make_cluster: Make, scripts: Path) -> None:
    missing = f'store_command = ["{scripts}/none"]'
    toml = dummy_cluster(scripts, store=True).splitlines()
    lines = [missing if line.startswith("store_command") else line for line in toml]
    cluster = make_cluster("\n".join(lines))
    await cluster.up()
    await cluster.until(
        lambda processes: (
            (store := find(processes, "store", "store")) is not None
            and store.state == node_pb2.PROCESS_STATE_BACKOFF
            and store.last_exit.startswith("cannot start")
        )
    )


async def test_a_router_that_cannot_start_ends_the_node_though_the_store_runs(
    make_cluster: Make, scripts: Path
) -> None:
    first = make_cluster(dummy_cluster(scripts))
    await first.up()
    second = make_cluster(dummy_cluster(scripts, store=True))
    await second.spawn("--grpc", first.node.addresses["grpc"])
    assert await second.ended() == 1
    assert second.children() == {}


async def test_the_next_supervisor_adopts_the_store(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, store=True))
    await cluster.up()
    store = await cluster.running("store", "store")
    await cluster.kill_supervisor()
    await cluster.up()
    assert (await cluster.running("store", "store")).pid == store.pid
    await cluster.kill_supervisor()
    cluster.rewrite(dummy_cluster(scripts))  # switched off meanwhile
    await cluster.up()
    await cluster.gone(store.pid)


async def test_the_store_is_stopped_after_the_workers(make_cluster: Make, scripts: Path) -> None:
    for name in ("worker-a", "store-store"):
        (scripts / name).write_text("ignore-term")
    patience = "stop_timeout_s = 1\nflush_timeout_s = 1"
    cluster = make_cluster(dummy_cluster(scripts, patience, store=True))
    await cluster.up()
    await cluster.start_worker("a")
    store = await cluster.running("store", "store")
    await cluster.running("worker", "a")
    cluster.supervisor.send_signal(signal.SIGTERM)

    def worker_has_ended(processes: Processes) -> bool:
        now = find(processes, "store", "store")
        worker = find(processes, "worker", "a")
        if worker is not None:
            assert now is not None
            assert now.state == node_pb2.PROCESS_STATE_RUNNING
        return worker is None

    await cluster.until(worker_has_ended)
    await cluster.gone(store.pid)
    assert await cluster.ended() == 0
    cluster.check_nothing_left()
