"""The supervisor over real processes: it starts, restarts, stops, and leaves nothing."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from bramley.deploy.lease import EXIT_FENCED
from bramley.protos.v1 import node_pb2
from support.cluster import Cluster, Processes, dummy_cluster, find

BACKOFF = node_pb2.PROCESS_STATE_BACKOFF
Make = Callable[[str], Cluster]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


async def test_children_run_and_a_stop_leaves_nothing(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    assert cluster.children() == {
        ("router", "router"): (await cluster.running("router", "router")).pid,
        ("worker", "a"): worker.pid,
    }
    assert worker.address == f"{cluster.node.node.rpartition('/')[0]}/worker-{worker.epoch}.sock"
    await cluster.down()


async def test_a_killed_worker_is_started_again(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    router = await cluster.running("router", "router")
    killed = await cluster.kill("worker", "a")
    again = await cluster.running("worker", "a", after=killed.epoch)
    assert (again.last_exit, again.restarts) == ("signal SIGKILL", 1)
    sockets = os.listdir(cluster.node.run_dir)
    assert killed.address.rpartition("/")[2] not in sockets
    assert again.address.rpartition("/")[2] in sockets
    assert (await cluster.running("router", "router")).pid == router.pid


async def test_a_router_started_again_keeps_its_ports(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    killed = await cluster.kill("router", "router")
    again = await cluster.running("router", "router", after=killed.epoch)
    for kind in ("grpc", "http"):
        assert again.addresses[kind] == killed.addresses[kind]
    assert cluster.node.addresses == dict(again.addresses)


@pytest.mark.parametrize(
    ("script", "last_exit"),
    [
        ("exit 7", "exit code 7: told to exit with 7"),
        ("exit-after 5", "exit code 5: told to exit with 5"),
        ("hang", "not ready in time: signal SIGKILL"),
        ("mute", "ended its hand-shake without addresses: exit code 0"),
    ],
)
async def test_a_worker_that_fails_is_tried_again_until_it_works(
    make_cluster: Make, scripts: Path, script: str, last_exit: str
) -> None:
    (scripts / "worker-a").write_text(script)
    patience = "start_timeout_s = 1" if script == "hang" else ""
    cluster = make_cluster(dummy_cluster(scripts, patience))
    await cluster.up()
    await cluster.start_worker("a")

    def has_failed(processes: Processes) -> bool:
        one = find(processes, "worker", "a")
        return one is not None and one.restarts >= 1 and one.last_exit == last_exit

    await cluster.until(has_failed)
    (scripts / "worker-a").unlink()
    await cluster.until(
        lambda processes: (
            (one := find(processes, "worker", "a")) is not None
            and one.state == node_pb2.PROCESS_STATE_RUNNING
        )
    )


async def test_a_worker_that_does_not_start_does_not_hinder_others(
    make_cluster: Make, scripts: Path
) -> None:
    (scripts / "worker-a").write_text("exit 7")
    cluster = make_cluster(dummy_cluster(scripts, "backoff_min_s = 60\nbackoff_max_s = 60"))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.until(
        lambda processes: (
            (one := find(processes, "worker", "a")) is not None
            and one.state == BACKOFF
            and one.pid == 0
        )
    )
    await cluster.start_worker("b")
    await cluster.running("worker", "b")


async def test_a_child_that_ignores_sigterm_is_killed(make_cluster: Make, scripts: Path) -> None:
    (scripts / "worker-a").write_text("ignore-term")
    cluster = make_cluster(dummy_cluster(scripts, "stop_timeout_s = 0.3"))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    await cluster.stop_worker("a")
    assert worker.pid not in cluster.children().values()


async def test_a_second_sigint_kills_at_once(make_cluster: Make, scripts: Path) -> None:
    (scripts / "router-router").write_text("ignore-term")
    (scripts / "worker-a").write_text("ignore-term")
    cluster = make_cluster(dummy_cluster(scripts, "stop_timeout_s = 3600"))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    cluster.supervisor.send_signal(signal.SIGINT)
    await cluster.until(
        lambda processes: (
            (one := find(processes, "router", "router")) is not None
            and one.state == node_pb2.PROCESS_STATE_STOPPING
        )
    )
    cluster.supervisor.send_signal(signal.SIGINT)
    assert await cluster.ended() == 0
    cluster.check_nothing_left()


async def test_b070_twenty_rounds_of_a_worker_end_without_a_hang(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    epochs: list[int] = []
    for _ in range(20):
        await cluster.start_worker("a")
        epochs.append((await cluster.running("worker", "a")).epoch)
        await cluster.stop_worker("a")
    assert epochs == sorted(set(epochs))
    assert set(cluster.children()) == {("router", "router")}


async def test_b070_children_inherit_no_descriptor_but_those_meant(
    make_cluster: Make, scripts: Path
) -> None:
    for name in ("worker-a", "worker-b"):
        (scripts / name).write_text("descriptors")
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    for name in ("a", "b"):  # the second is started while calls and sockets are open
        await cluster.start_worker(name)
        await cluster.running("worker", name)
        assert "unexpected descriptors: []" in cluster.log("worker", name)


async def test_starting_twice_is_once_and_other_settings_are_refused(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    first = await cluster.running("worker", "a")
    assert (await cluster.start_worker("a")).pid == first.pid
    assert await _refusal(cluster, "a", b'{"path": "else"}') == grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(("name", "settings"), [("../a", b"{}"), ("", b"{}"), ("a", b"no JSON")])
async def test_a_malformed_spec_is_refused(
    make_cluster: Make, scripts: Path, name: str, settings: bytes
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    assert await _refusal(cluster, name, settings) == grpc.StatusCode.INVALID_ARGUMENT


async def _refusal(cluster: Cluster, name: str, settings: bytes) -> grpc.StatusCode:
    spec = node_pb2.WorkerSpec(name=name, settings_json=settings)
    async with cluster.stub() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.StartWorker(node_pb2.StartWorkerRequest(spec=spec))
    return caught.value.code()


async def test_stopping_an_unknown_worker_is_not_found(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await cluster.stop_worker("a")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_b068_two_clusters_on_one_port_are_refused(make_cluster: Make, scripts: Path) -> None:
    first, second = make_cluster(dummy_cluster(scripts)), make_cluster(dummy_cluster(scripts))
    await first.up()
    await second.spawn("--grpc", first.node.addresses["grpc"])
    assert await second.ended() == 1
    said = (second.folder / "supervisor.log").read_text().splitlines()[-1]
    assert said.startswith("bramley: the router does not start: exit code 1:")
    assert "address already in use" in said


async def test_a_disk_that_takes_no_pidfile_does_not_stop_serving(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    obstacle = cluster.state_dir / "processes" / "worker-a.json.new"
    obstacle.mkdir()  # a file of that name cannot be written
    await cluster.start_worker("a")
    first = await cluster.running("worker", "a")
    await cluster.kill_supervisor()
    obstacle.rmdir()
    await cluster.up()
    again = await cluster.running("worker", "a", after=first.epoch)  # the first was a stray
    assert cluster.children()["worker", "a"] == again.pid


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 7", "exit code 7: told to exit with 7"),
        ("exit 0", "exit code 0"),
        ("hang", "not ready in time: signal SIGKILL"),
        ("signal 6", "signal SIGABRT"),
        ("mute", "ended its hand-shake without addresses: exit code 0"),
    ],
)
async def test_a_router_that_does_not_start_ends_the_node_with_the_reason(
    make_cluster: Make, scripts: Path, script: str, reason: str
) -> None:
    (scripts / "router-router").write_text(script)
    patience = "start_timeout_s = 1" if script == "hang" else ""
    cluster = make_cluster(dummy_cluster(scripts, patience))
    await cluster.spawn()
    assert await cluster.ended() == 1
    said = (cluster.folder / "supervisor.log").read_text().splitlines()[-1]
    assert said == f"bramley: the router does not start: {reason}"


async def test_a_router_that_cannot_be_executed_ends_the_node_with_the_reason(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.spawn("--set", 'node.router_command=["/nonexistent/router"]')
    assert await cluster.ended() == 1
    said = (cluster.folder / "supervisor.log").read_text().splitlines()[-1]
    assert said.startswith("bramley: the router does not start: cannot start: ")
    assert "/nonexistent/router" in said


async def test_a_node_heals_when_its_run_folder_vanishes(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "sweep_every_s = 0.2"))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    router = await cluster.running("router", "router")
    shutil.rmtree(cluster.node.run_dir)
    assert (await cluster.running("worker", "a", after=worker.epoch)).restarts == 1
    again = await cluster.running("router", "router", after=router.epoch)
    assert again.addresses["grpc"] == router.addresses["grpc"]
    assert stat.S_IMODE(os.lstat(cluster.node.run_dir).st_mode) == 0o700
    await cluster.down()


async def test_a_run_folder_that_is_anothers_now_ends_the_node(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "sweep_every_s = 0.2"))
    await cluster.up()
    os.chmod(cluster.node.run_dir, 0o500)
    assert await cluster.ended() == 1
    said = (cluster.folder / "supervisor.log").read_text().splitlines()[-1]
    assert said.startswith("bramley: the folder of its sockets is gone: ")


@pytest.mark.parametrize("how", ["moved", "removed"])
async def test_a_state_folder_that_is_gone_ends_the_supervisor_with_one_sentence(
    make_cluster: Make, scripts: Path, how: str
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "orphan_grace_s = 0.5"))
    await cluster.up()
    children = cluster.children()
    if how == "moved":
        cluster.state_dir.rename(cluster.folder / "moved")
    else:
        shutil.rmtree(cluster.state_dir)
    assert await cluster.ended() == EXIT_FENCED
    said = (cluster.folder / "supervisor.log").read_text()
    assert "Traceback" not in said
    assert "the state folder is gone" in said.splitlines()[-1]
    await cluster.gone(*children.values())
    shutil.rmtree(cluster.node.run_dir)


async def test_a_folder_of_other_things_is_refused(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    cluster.state_dir.mkdir()
    (cluster.state_dir / "thesis.txt").write_text("")
    await cluster.spawn()
    assert await cluster.ended() == 2
    (said,) = (cluster.folder / "supervisor.log").read_text().splitlines()
    assert said == f"bramley: --state-dir: {cluster.state_dir} is not empty, and no state folder"
    assert os.listdir(cluster.state_dir) == ["thesis.txt"]


async def test_one_in_the_foreground_says_where_it_serves(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    addresses = cluster.node.addresses
    line = f"bramley: serving gRPC at {addresses['grpc']}, metrics at http://{addresses['http']}/metrics\n"
    log = cluster.folder / "supervisor.log"

    async def said() -> None:
        while line not in log.read_text():  # noqa: ASYNC110 a file
            await asyncio.sleep(0.02)

    await cluster.within(said())
