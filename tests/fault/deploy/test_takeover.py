"""The supervisor's own death: children go on, the next one takes over, none is harmed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bramley.common.child import ChildContext
from bramley.common.lease import LEASE_TTL_S, read_lease
from bramley.deploy.lease import EXIT_FENCED
from bramley.protos.v1 import node_pb2
from support.cluster import DUMMY_CHILD, Cluster, Processes, dummy_cluster, find

EXIT_OWNED = 3
Make = Callable[[str], Cluster]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


async def _serving(cluster: Cluster) -> dict[tuple[str, str], int]:
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    return cluster.children()


async def test_children_without_a_supervisor_go_on_and_then_stop(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "orphan_grace_s = 1"))
    serving = await _serving(cluster)
    await cluster.kill_supervisor()
    assert cluster.children() == serving
    await cluster.gone(*serving.values())
    assert "stopped: orphaned" in cluster.log("worker", "a")


async def test_the_next_supervisor_adopts_what_runs(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "orphan_grace_s = 1"))
    serving = await _serving(cluster)
    addresses = cluster.node.addresses
    for _ in range(2):
        await cluster.kill_supervisor()
        await cluster.up()
        await cluster.running("worker", "a")
        assert cluster.children() == serving
        assert cluster.node.addresses == addresses
    await cluster.down()


@pytest.mark.slow
async def test_adopted_children_outlive_their_grace(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "orphan_grace_s = 1"))
    serving = await _serving(cluster)
    await cluster.kill_supervisor()
    await cluster.up()
    await asyncio.sleep(LEASE_TTL_S + 2)  # by then they would have stopped without a new owner
    assert cluster.children() == serving


async def test_an_adopted_worker_is_watched_like_any_other(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await _serving(cluster)
    await cluster.kill_supervisor()
    await cluster.up()
    killed = await cluster.kill("worker", "a")
    again = await cluster.running("worker", "a", after=killed.epoch)
    assert (again.restarts, again.last_exit.split(":")[0]) == (1, "exit code unknown")


async def test_what_died_with_its_supervisor_is_started_again(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    serving = await _serving(cluster)
    addresses = cluster.node.addresses
    await cluster.kill_supervisor()
    os.kill(serving["router", "router"], signal.SIGKILL)
    await cluster.up()
    await cluster.running("worker", "a")
    assert cluster.children()["worker", "a"] == serving["worker", "a"]
    assert cluster.node.addresses["grpc"] == addresses["grpc"]


async def test_a_second_supervisor_is_refused(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    owner = cluster.supervisor
    refused = await cluster.spawn()
    assert await cluster.ended(refused) == EXIT_OWNED
    said = (cluster.folder / "supervisor.log").read_text().splitlines()[-1]
    assert said.endswith(f"belongs to a running supervisor, process {owner.pid}")
    cluster.forget(refused)


async def test_a_paused_supervisor_is_replaced_and_wakes_without_harm(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    serving = await _serving(cluster)
    paused, epoch = cluster.supervisor, cluster.node.epoch
    paused.send_signal(signal.SIGSTOP)
    refused = await cluster.spawn()  # the lease is fresh yet
    assert await cluster.ended(refused) == EXIT_OWNED
    await _lease_expired(cluster)
    await cluster.up()
    assert cluster.node.epoch > epoch
    assert cluster.children() == serving
    paused.send_signal(signal.SIGCONT)
    assert await cluster.ended(paused) == EXIT_FENCED
    assert cluster.children() == serving
    await cluster.running("worker", "a")  # over the socket that was the paused one's
    await cluster.down()


@pytest.mark.slow
async def test_a_paused_supervisor_told_to_stop_wakes_without_harm(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    serving = await _serving(cluster)
    paused = cluster.supervisor
    paused.send_signal(signal.SIGSTOP)
    await _lease_expired(cluster)
    await cluster.up()
    paused.send_signal(signal.SIGTERM)
    paused.send_signal(signal.SIGCONT)
    assert await cluster.ended(paused) == EXIT_FENCED
    assert cluster.children() == serving


async def _lease_expired(cluster: Cluster) -> None:
    async def wait() -> None:
        lease = read_lease(cluster.state_dir / "lease.json")
        assert lease is not None
        while lease.is_fresh(asyncio.get_running_loop().time()):  # noqa: ASYNC110 a clock
            await asyncio.sleep(0.05)

    await cluster.within(wait())


async def test_an_unknown_orphan_is_swept(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    cluster.state_dir.mkdir()
    orphan = await _orphan(cluster, scripts)
    await cluster.up()
    await cluster.gone(orphan.pid)
    await orphan.wait()


async def test_an_orphan_that_appears_late_is_swept(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts, "sweep_every_s = 0.5"))
    await cluster.up()
    orphan = await _orphan(cluster, scripts)
    await cluster.gone(orphan.pid)
    await orphan.wait()


async def _orphan(cluster: Cluster, scripts: Path) -> asyncio.subprocess.Process:
    """Start a child as a supervisor does that dies before it writes the pidfile."""
    ready, told = os.pipe()
    ended, owner = os.pipe()
    os.close(owner)
    context = ChildContext(
        role="worker",
        name="a",
        epoch=10**6,
        run_dir=str(scripts),
        lease_file=str(cluster.state_dir.resolve() / "lease.json"),
        ready_fd=told,
        owner_fd=ended,
    )
    settings = scripts / "settings.json"
    settings.write_text("{}")
    orphan = await asyncio.create_subprocess_exec(
        *(sys.executable, str(DUMMY_CHILD), str(scripts)),
        *("--child", context.argument(), "--settings", str(settings)),
        pass_fds=(told, ended),
        stdout=asyncio.subprocess.DEVNULL,
    )
    for fd in (ready, told, ended):
        os.close(fd)
    return orphan


def _is(role: str, state: int) -> Callable[[Processes], bool]:
    name = "a" if role == "worker" else role
    return lambda processes: (
        (one := find(processes, role, name)) is not None and (one.state == state and one.pid != 0)
    )


STAGES: dict[str, tuple[str, Callable[[Processes], bool]]] = {
    "router starting": ("router-router", _is("router", node_pb2.PROCESS_STATE_STARTING)),
    "worker starting": ("worker-a", _is("worker", node_pb2.PROCESS_STATE_STARTING)),
    "worker running": ("", _is("worker", node_pb2.PROCESS_STATE_RUNNING)),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_supervisor_killed_at_any_stage_leaves_a_folder_that_comes_up(
    make_cluster: Make, scripts: Path, stage: str
) -> None:
    hanging, condition = STAGES[stage]
    if hanging:
        (scripts / hanging).write_text("hang")
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.spawn()
    if stage != "router starting":
        await cluster.running("router", "router")
        await cluster.start_worker("a")
    await cluster.until(condition)
    await _comes_up_again(cluster, scripts)


async def test_a_supervisor_killed_while_it_stops_leaves_a_folder_that_comes_up(
    make_cluster: Make, scripts: Path
) -> None:
    (scripts / "worker-a").write_text("ignore-term")
    cluster = make_cluster(dummy_cluster(scripts, "stop_timeout_s = 2"))
    await _serving(cluster)
    cluster.supervisor.send_signal(signal.SIGTERM)
    await cluster.until(_is("worker", node_pb2.PROCESS_STATE_STOPPING))
    await _comes_up_again(cluster, scripts)


async def test_a_supervisor_killed_in_its_start_leaves_a_folder_that_comes_up(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    for delay_s in (0.1, 0.2, 0.3, 0.4, 0.5):
        await cluster.spawn()
        await asyncio.sleep(delay_s)  # wherever that is
        cluster.supervisor.kill()
        await cluster.ended()
    await cluster.up()
    await cluster.until(lambda processes: len(processes) == 2)
    await cluster.down()


async def _comes_up_again(cluster: Cluster, scripts: Path) -> None:
    await cluster.kill_supervisor()
    for script in os.listdir(scripts):
        (scripts / script).unlink()
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    await cluster.until(lambda processes: len(processes) == 3)
    assert set(cluster.children()) == {("router", "router"), ("worker", "a")}
    await cluster.down()


async def test_changed_settings_replace_what_they_change(make_cluster: Make, scripts: Path) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    for name in ("a", "b"):
        await cluster.start_worker(name)
        await cluster.running("worker", name)
    before = cluster.children()
    await cluster.kill_supervisor()
    changed = dummy_cluster(scripts).replace(
        '[models.a]\npath = "none"', '[models.a]\npath = "new"'
    )
    cluster.rewrite(changed)
    await cluster.up()
    await cluster.gone(before["router", "router"], before["worker", "a"])
    assert cluster.children()["worker", "b"] == before["worker", "b"]
    await cluster.start_worker("a")
    await cluster.running("worker", "a")


async def test_what_a_dead_supervisor_left_is_stopped_and_nothing_is_left(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts, store=True))
    await _serving(cluster)
    await cluster.kill_supervisor()
    assert len(cluster.children()) == 3
    await cluster.spawn("--stop")
    assert await cluster.ended() == 0
    cluster.check_nothing_left()
    said = (cluster.folder / "supervisor.log").read_text()
    ended = [line.split("role=")[1].split()[0] for line in said.splitlines() if " ended " in line]
    assert ended == ["router", "worker", "store"]


async def test_a_running_supervisors_children_are_not_stopped_for_it(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    serving = await _serving(cluster)
    refused = await cluster.spawn("--stop")
    assert await cluster.ended(refused) == EXIT_OWNED
    cluster.forget(refused)
    assert cluster.children() == serving


async def test_a_wrapped_worker_is_adopted_with_its_wrapper(
    make_cluster: Make, scripts: Path
) -> None:
    dummy = json.dumps([sys.executable, str(DUMMY_CHILD), str(scripts)])
    wrapper = "import subprocess, sys; subprocess.run(sys.argv[1:], close_fds=False)"
    wrapped = json.dumps([sys.executable, "-c", wrapper, *json.loads(dummy)])
    toml = dummy_cluster(scripts).replace(
        f"worker_command = {dummy}", f"worker_command = {wrapped}"
    )
    cluster = make_cluster(toml)
    await _serving(cluster)
    worker = await cluster.running("worker", "a")
    await cluster.kill_supervisor()
    await cluster.up()
    assert (await cluster.running("worker", "a")).epoch == worker.epoch
    assert cluster.children()["worker", "a"] == worker.pid
    assert len(psutil.Process(worker.pid).children()) == 1
    await cluster.down()  # though this wrapper hands no signal on


async def test_another_users_process_that_names_our_lease_is_no_child(
    make_cluster: Make, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    assert cluster.children()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not cluster.children()
