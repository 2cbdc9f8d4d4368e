"""B075: nothing outlives its owner: no process, no port, no memory that is held for it."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bramley.client.events import Delta
from bramley.common.status import RemoteError
from bramley.protos.v1 import node_pb2
from support.baseline import at_rest, strays
from support.cluster import find
from support.served import ENDLESS, Served, serving

BACK_S = 30.0
REFUSED_S = 90.0  # three starts without a model, on a machine that has other things to do
CRASH_LOOP_STARTS = 3
SCRIPT = """
[models.script]
path = "{models}/script"
memory_bytes = 300000000
"""
SETTINGS = f"""
[router.classes.default]
queue_timeout_s = 120.0
[models.tiny]
path = "{{models}}/tiny"
memory_bytes = 300000000
{SCRIPT}
[models.broken]
path = "{{models}}"  # no model
load = "demand"
memory_bytes = 300000000
"""
READY = ("tiny", "script")


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """A cluster for this file alone: its supervisor and a worker die."""
    folder = tmp_path_factory.mktemp("stack")
    settings = SETTINGS.format
    async with serving(folder, lambda path: settings(models=path), until_ready=READY) as made:
        yield made


async def reserved(served: Served) -> int:
    """Memory that the ledger holds for models."""
    memory = (await served.client.status()).memory
    assert memory is not None
    return memory.reserved_bytes


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(400)])]
)
async def test_b075_supervisor_and_worker_killed_together_leave_nothing(
    served: Served, rounds: int
) -> None:
    cluster = served.cluster
    expected = await served.completed("tiny", "once", max_tokens=8)
    keys, held = cluster.children().keys(), await reserved(served)
    for _ in range(rounds):
        worker = await cluster.running("worker", "tiny")
        os.kill(worker.pid, signal.SIGKILL)
        await cluster.kill_supervisor()
        began_s = time.monotonic()
        await cluster.up()
        await cluster.gone(worker.pid)
        again = await cluster.running("worker", "tiny", after=worker.epoch)
        assert again.pid != worker.pid
        answer = await served.completed("tiny", "once", max_tokens=8, max_queue_s=BACK_S)
        assert answer.token_ids == expected.token_ids
        assert time.monotonic() - began_s < BACK_S
        await served.ready(*READY)
        assert cluster.children().keys() == keys
        assert not strays(served)
        assert await reserved(served) == held
        await at_rest(served)


@pytest.mark.slow
async def test_b075_a_load_that_fails_is_given_up_after_the_documented_tries(
    served: Served,
) -> None:
    before = set(served.cluster.children())
    began_s = time.monotonic()
    with pytest.raises(RemoteError) as raised:
        await served.completed("broken", "is anybody there", max_tokens=8)
    assert time.monotonic() - began_s < REFUSED_S
    assert (raised.value.code, raised.value.reason) == ("UNAVAILABLE", "NO_READY_WORKER")
    assert "config.json" in raised.value.message  # why, in the worker's last words
    again_s = time.monotonic()
    with pytest.raises(RemoteError):
        await served.completed("broken", "and now", max_tokens=8)
    assert time.monotonic() - again_s < 1.0
    assert (await served.client.get_model("broken")).state == "failed"

    def is_resting(processes: list[node_pb2.Process]) -> bool:
        one = find(processes, "worker", "broken")
        return one is not None and one.state == node_pb2.PROCESS_STATE_BACKOFF and not one.pid

    processes = await served.cluster.until(is_resting)
    found = find(processes, "worker", "broken")
    assert found is not None
    assert found.restarts >= CRASH_LOOP_STARTS - 1
    await served.client.unload_model("broken")
    assert set(served.cluster.children()) == before
    assert not strays(served)
    models = {one.name: one for one in await served.client.list_models()}
    assert (models["broken"].state, models["broken"].reserved_bytes) == ("unloaded", 0)
    assert len((await served.completed("script", ENDLESS, max_tokens=8)).token_ids) == 8


async def test_b075_ctrl_c_under_load_ends_the_whole_stack(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda path: SCRIPT.format(models=path)) as served:
        cluster = served.cluster
        begun = asyncio.Event()
        text: list[str] = []

        async def stream() -> None:
            async for event in served.client.generate("script", ENDLESS, max_tokens=2000):
                if isinstance(event, Delta):
                    text.append(event.text)
                    begun.set()

        streaming = asyncio.create_task(stream())
        await cluster.within(begun.wait())
        address = cluster.node.addresses["grpc"]
        os.killpg(cluster.supervisor.pid, signal.SIGINT)  # as a terminal does
        assert await cluster.ended() == 0
        cluster.check_nothing_left()
        await streaming  # which had its time
        assert "".join(text) == "abc " * 500
        host, port = address.split(":")
        with socket.create_server((host, int(port))):  # it is free again
            pass
