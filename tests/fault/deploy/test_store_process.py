"""The real cache store under its supervisor: found by the same names whatever becomes of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bramley.common.rpc import open_channel
from bramley.protos.v1 import cachestore_pb2
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub
from support.cluster import Cluster, dummy_cluster

Make = Callable[[str], Cluster]


@pytest.fixture
def toml(tmp_path: Path) -> str:
    """Only the store is a real one."""
    lines = dummy_cluster(tmp_path / "scripts", store=True).splitlines()
    return "\n".join(line for line in lines if not line.startswith("store_command"))


async def hello(cluster: Cluster) -> cachestore_pb2.HelloResponse:
    """Greet the store as a worker does, by the name that stays."""
    question = cachestore_pb2.HelloRequest(protocol_version=1, client="test", connection_id="x")
    async with open_channel(f"unix:{cluster.node.run_dir}/store.sock") as channel:
        call = CacheStoreServiceStub(channel).Hello(question, wait_for_ready=True)
        return await cluster.within(call)


async def test_the_names_that_stay_lead_to_the_living_incarnation(
    make_cluster: Make, toml: str
) -> None:
    cluster = make_cluster(toml)
    await cluster.up()
    first = await cluster.running("store", "store")
    greeted = await hello(cluster)
    assert greeted.epoch == first.epoch
    await cluster.kill("store", "store")
    again = await cluster.running("store", "store", after=first.epoch)
    greeted_again = await hello(cluster)
    assert (greeted_again.epoch, greeted_again.store_id) == (again.epoch, greeted.store_id)
    data = Path(cluster.node.run_dir, "store.data")
    told = again.addresses["data"]
    assert str(data.resolve()) == greeted_again.data_socket == told  # noqa: ASYNC240 a moment


async def test_the_next_supervisor_adopts_it_and_a_clean_end_leaves_its_folder(
    make_cluster: Make, toml: str
) -> None:
    cluster = make_cluster(toml)
    await cluster.up()
    before = await cluster.running("store", "store")
    greeted = await hello(cluster)
    await cluster.kill_supervisor()
    assert (await hello(cluster)).epoch == before.epoch
    await cluster.up()
    assert (await cluster.running("store", "store")).pid == before.pid
    await cluster.down()
    assert (cluster.state_dir / "cache.noindex" / "STORE").is_file()
    await cluster.up()
    await cluster.running("store", "store")
    assert (await hello(cluster)).store_id == greeted.store_id


async def test_a_folder_that_cannot_be_had_leaves_the_tier_in_ram(
    make_cluster: Make, toml: str
) -> None:
    cluster = make_cluster(toml)
    cluster.state_dir.mkdir()
    (cluster.state_dir / "cache.noindex").write_text("not a folder")
    await cluster.up()
    await cluster.running("store", "store")
    async with open_channel(f"unix:{cluster.node.run_dir}/store.sock") as channel:
        stats = await CacheStoreServiceStub(channel).Stats(cachestore_pb2.StatsRequest())
    assert stats.gauges["ssd_is_on"] == 0
