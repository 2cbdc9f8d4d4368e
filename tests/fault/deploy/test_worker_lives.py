"""What the router asks of a worker's process: now, pinned, killed; and a loop of crashes."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from bramley.protos.v1 import node_pb2
from support.cluster import Cluster, Processes, dummy_cluster, find

BACKOFF = node_pb2.PROCESS_STATE_BACKOFF
LOOP = "backoff_min_s = 0.01\ncrash_loop_starts = 3\ncrash_loop_pause_s = 600"
Make = Callable[[str], Cluster]
SILENT = "silent for 30 s"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


def _is_paused(restarts: int) -> Callable[[Processes], bool]:
    def paused(processes: Processes) -> bool:
        one = find(processes, "worker", "a")
        return one is not None and (one.state, one.restarts) == (BACKOFF, restarts)

    return paused


async def test_a_worker_that_keeps_crashing_pauses_until_it_is_to_start_now(
    make_cluster: Make, scripts: Path
) -> None:
    (scripts / "worker-a").write_text("exit 7")
    cluster = make_cluster(dummy_cluster(scripts, LOOP))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.until(_is_paused(2))
    assert (await cluster.start_worker("a")).state == BACKOFF  # it is wanted already: no news
    await cluster.start_worker("a", now=True)
    await cluster.until(_is_paused(5))  # its count of crashes began anew
    (scripts / "worker-a").unlink()
    await cluster.start_worker("a", now=True)
    assert (await cluster.running("worker", "a")).restarts == 6


@pytest.mark.parametrize("works", [True, False])
async def test_only_a_worker_that_has_worked_is_forgiven_its_crashes(
    make_cluster: Make, scripts: Path, *, works: bool
) -> None:
    """However long a load takes, its crash is one of the start."""
    (scripts / "worker-a").write_text("exit-after 5" + "\nidle" * (not works))
    cluster = make_cluster(dummy_cluster(scripts, LOOP + "\nsettled_s = 0.0001"))
    await cluster.up()
    await cluster.start_worker("a")
    if works:
        await cluster.until(
            lambda processes: (
                (one := find(processes, "worker", "a")) is not None and one.restarts > 4
            )
        )
    else:
        await cluster.until(_is_paused(2))


async def test_a_router_that_keeps_crashing_is_tried_again_and_again(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, LOOP))
    await cluster.up()
    for _ in range(5):
        killed = await cluster.kill("router", "router")
        await cluster.running("router", "router", after=killed.epoch)


async def test_a_pin_is_told_of_every_process_of_the_worker_and_outlives_the_supervisor(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    assert not (await cluster.start_worker("a")).pinned
    running = await cluster.running("worker", "a")
    pinned = await cluster.start_worker("a", pinned=True)
    assert (pinned.pinned, pinned.pid) == (True, running.pid)
    await cluster.kill_supervisor()
    await cluster.up()
    adopted = await cluster.running("worker", "a")
    assert (adopted.pinned, adopted.pid) == (True, running.pid)
    await cluster.kill("worker", "a")
    assert (await cluster.running("worker", "a", after=adopted.epoch)).pinned
    assert not (await cluster.start_worker("a")).pinned


@pytest.mark.parametrize("script", ["", "ignore-term"])
@pytest.mark.parametrize("adopted", [False, True])
async def test_a_killed_worker_is_gone_for_a_reason_that_is_told(
    make_cluster: Make, scripts: Path, script: str, *, adopted: bool
) -> None:
    (scripts / "worker-a").write_text(script)
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    silent = await cluster.running("worker", "a")
    (scripts / "worker-a").write_text("")  # for the next one
    if adopted:
        await cluster.kill_supervisor()
        await cluster.up()
    await cluster.kill_worker("a", silent.epoch, SILENT)
    again = await cluster.running("worker", "a", after=silent.epoch)
    assert again.last_exit == f"{SILENT}: signal SIGKILL"


async def test_being_killed_is_a_crash(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, LOOP))
    await cluster.up()
    await cluster.start_worker("a")
    epoch = 0
    for _ in range(3):
        epoch = (await cluster.running("worker", "a", after=epoch)).epoch
        await cluster.kill_worker("a", epoch, SILENT)
    await cluster.until(_is_paused(2))


@pytest.mark.parametrize(("name", "newer"), [("a", 1), ("b", 0), ("router", 0)])
async def test_another_incarnation_is_not_killed(
    make_cluster: Make, scripts: Path, name: str, newer: int
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await cluster.kill_worker(name, worker.epoch + newer, SILENT)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert (await cluster.running("worker", "a")).pid == worker.pid


async def test_a_stopping_worker_can_be_killed_and_does_not_come_back(
    make_cluster: Make, scripts: Path
) -> None:
    (scripts / "worker-a").write_text("ignore-term")
    cluster = make_cluster(dummy_cluster(scripts, "stop_timeout_s = 3600"))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    async with cluster.stub() as stub:
        stopping = stub.StopWorker(node_pb2.StopWorkerRequest(name="a"))
        await cluster.until(
            lambda processes: (
                (one := find(processes, "worker", "a")) is not None
                and one.state == node_pb2.PROCESS_STATE_STOPPING
            )
        )
        await cluster.kill_worker("a", worker.epoch, SILENT)
        await cluster.within(stopping)
    assert set(cluster.children()) == {("router", "router")}
