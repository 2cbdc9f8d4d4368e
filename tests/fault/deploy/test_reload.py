"""Reload over real processes: what is taken, what is refused, what outlives it."""

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec
import pytest

from bramley.protos.v1 import node_pb2
from bramley.router.settings import RouterSettings
from support.cluster import Cluster, dummy_cluster

Make = Callable[[str], Cluster]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


async def _told(cluster: Cluster, backlog_bytes: int) -> RouterSettings:
    """Wait until Watch tells of settings with that backlog."""

    async def wait() -> RouterSettings:
        async with cluster.stub() as stub:
            call = stub.Watch(node_pb2.WatchRequest())
            try:
                async for response in call:
                    told = msgspec.json.decode(response.router_settings_json, type=RouterSettings)
                    if told.backlog_bytes == backlog_bytes:
                        return told
            finally:
                call.cancel()
        raise AssertionError(cluster.logs())

    return await cluster.within(wait())


async def test_new_settings_are_told_at_once_and_to_the_next_router_and_disturb_no_process(
    make_cluster: Make, scripts: Path
) -> None:
    toml = dummy_cluster(scripts)
    cluster = make_cluster(toml)
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    before = cluster.children()
    assert (await _told(cluster, 1 << 20)).node == cluster.node.node
    new = dummy_cluster(scripts, "settled_s = 7\nsweep_every_s = 0.1", "a c")
    new += "[router]\nbacklog_bytes = 5\n"
    assert await cluster.reload(new) == [
        *("models.b", "models.c", "node.settled_s", "node.sweep_every_s", "router.backlog_bytes"),
    ]
    assert set((await _told(cluster, 5)).models) == {"a", "c"}
    assert cluster.children() == before
    assert await cluster.reload(new) == []
    await cluster.start_worker("c")
    killed = await cluster.kill("router", "router")
    again = await cluster.running("router", "router", after=killed.epoch)
    assert again.addresses["grpc"] == killed.addresses["grpc"]
    given = json.loads((cluster.state_dir / "settings" / "router-router.json").read_bytes())
    assert given["backlog_bytes"] == 5


async def test_a_supervisor_that_takes_over_finds_nothing_new_in_what_was_reloaded(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    await cluster.running("worker", "a")
    before = cluster.children()
    assert await cluster.reload(dummy_cluster(scripts) + "[router]\nbacklog_bytes = 5\n")
    await cluster.kill_supervisor()
    await cluster.up()
    await cluster.running("worker", "a")
    assert cluster.children() == before


async def test_a_wanted_worker_of_a_model_that_is_no_more_is_left_to_the_router(
    make_cluster: Make, scripts: Path
) -> None:
    cluster = make_cluster(dummy_cluster(scripts))
    await cluster.up()
    await cluster.start_worker("a")
    worker = await cluster.running("worker", "a")
    assert await cluster.reload(dummy_cluster(scripts, models="b")) == ["models.a"]
    await cluster.start_worker("b")
    await cluster.running("worker", "b")
    assert (await cluster.running("worker", "a")).pid == worker.pid
    await cluster.kill_supervisor()
    await cluster.up()
    await cluster.gone(worker.pid)
    assert set(cluster.children()) == {("router", "router"), ("worker", "b")}


@pytest.mark.parametrize(
    ("store", "more", "named"),
    [
        ("false", "backlog = 5", "router.backlog: is no setting"),
        ("false", "running_max.a = 0", "router.running_max"),
        ("true", "backlog_bytes = 5", "store.enabled: takes `bramley down`"),
        ("false", "backlog_bytes = ", "cluster.toml: "),
    ],
)
async def test_what_cannot_be_taken_is_named_and_nothing_is(
    make_cluster: Make, scripts: Path, store: str, more: str, named: str
) -> None:
    first = dummy_cluster(scripts)
    cluster = make_cluster(first)
    await cluster.up()
    wrong = first.replace("enabled = false", f"enabled = {store}") + f"[router]\n{more}\n"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await cluster.reload(wrong)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in (raised.value.details() or "")
    assert await cluster.reload(first) == []
    assert (await _told(cluster, 1 << 20)).models.keys() == {"a", "b"}
