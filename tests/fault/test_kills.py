"""Each process killed while a real model loads, queues, prefills and decodes.

What must hold: nothing hangs, only the requests of the dead worker fail, each with its
status and details, and everything serves again within seconds.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import grpc
import psutil
import pytest

from bramley.client.events import Accepted, Completion, Delta, Progress
from bramley.client.requests import Options
from bramley.common.status import RemoteError
from support.served import ENDLESS, Served, serving

PROMPT = "Once upon a time"
AGAIN_S = 20.0
_ASKED = itertools.count()

SETTINGS = """
[models.tiny]
path = "{models}/tiny"
max_rows = 1
prefill_chunk_tokens = 16
[models.script]
path = "{models}/script"
[node]
crash_loop_starts = 1000  # what a test kills has not crashed by itself
"""


@pytest.fixture(scope="module")
async def victim(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """A cluster for this file alone: its processes die."""
    folder = tmp_path_factory.mktemp("victim")
    async with serving(folder, lambda models: SETTINGS.format(models=models)) as made:
        yield made


@pytest.fixture(scope="module")
async def expected(victim: Served) -> Completion:
    return await victim.completed("tiny", PROMPT, max_tokens=8)


async def at_decode(victim: Served) -> "asyncio.Task[None]":
    """Start a long answer of the tiny model and wait for its third token."""
    return await _until(victim, lambda event: getattr(event, "completion_tokens", 0) >= 3, "x")


async def at_prefill(victim: Served) -> "asyncio.Task[None]":
    """Start a long prompt and wait until a part of it is computed."""
    return await _until(victim, lambda event: isinstance(event, Progress), "y" * 3000)


async def at_queue(victim: Served) -> "asyncio.Task[None]":
    """Occupy the only row, and return a request that waits behind it."""
    first = await at_decode(victim)
    second = await _until(victim, lambda event: isinstance(event, Accepted), "z")
    second.add_done_callback(lambda _: first.exception() if first.done() else None)
    return second


async def _until(
    victim: Served, reached: Callable[[object], bool], prompt: str
) -> "asyncio.Task[None]":
    there = asyncio.Event()

    async def run() -> None:
        # Two workers that die under one and the same prompt would make it a suspect.
        asked = f"{next(_ASKED)} {prompt}"
        call = victim.client.generate("tiny", asked, max_tokens=900, progress=True)
        async with aclosing(call) as events:
            async for event in events:
                if reached(event):
                    there.set()

    task = asyncio.create_task(run())
    await victim.cluster.within(there.wait())
    return task


Stage = Callable[[Served], Awaitable["asyncio.Task[None]"]]
STAGES: dict[str, Stage] = {"prefill": at_prefill, "decode": at_decode, "queue": at_queue}


async def serves_again(victim: Served, expected: Completion) -> None:
    """The next request is answered as before, and nothing is left booked."""
    again = victim.completed("tiny", PROMPT, max_tokens=8)
    assert (await victim.cluster.within(again, timeout_s=AGAIN_S)).token_ids == expected.token_ids
    await victim.idle("tiny")


@pytest.mark.parametrize("stage", STAGES)
async def test_a_killed_worker_fails_its_own_requests_alone(
    victim: Served, expected: Completion, stage: str
) -> None:
    neighbour = asyncio.create_task(victim.completed("script", ENDLESS, max_tokens=400))
    waiting = await STAGES[stage](victim)
    killed = await victim.cluster.kill("worker", "tiny")
    if stage != "decode":  # nothing of the answer was seen, and the next one gives it
        await victim.cluster.running("worker", "tiny", after=killed.epoch)
        await victim.cluster.within(waiting, timeout_s=60.0)
    else:
        with pytest.raises(RemoteError) as raised:
            await victim.cluster.within(waiting)
        assert raised.value.status_code is grpc.StatusCode.UNAVAILABLE
        assert raised.value.reason == "WORKER_LOST"
        assert raised.value.facts["model"] == "tiny"
        assert int(raised.value.facts["tokens_emitted"]) > 0
    assert len((await neighbour).token_ids) == 400
    await serves_again(victim, expected)


async def test_a_worker_killed_while_it_loads_is_waited_for(
    victim: Served, expected: Completion
) -> None:
    first = await victim.cluster.kill("worker", "tiny")
    waiting = asyncio.create_task(victim.completed("tiny", PROMPT, max_tokens=8))
    second = await victim.cluster.running("worker", "tiny", after=first.epoch)
    psutil.Process(second.pid).kill()  # its sockets are bound, its model is not there yet
    third = await victim.cluster.running("worker", "tiny", after=second.epoch)
    assert (await victim.cluster.within(waiting)).token_ids == expected.token_ids
    assert third.epoch > second.epoch > first.epoch
    await serves_again(victim, expected)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_killed_router_ends_its_streams_and_frees_their_rows(
    victim: Served, expected: Completion, stage: str
) -> None:
    worker = await victim.cluster.running("worker", "tiny")
    waiting = await STAGES[stage](victim)
    killed = await victim.cluster.kill("router", "router")
    with pytest.raises(RemoteError) as raised:
        await victim.cluster.within(waiting)
    assert raised.value.status_code is grpc.StatusCode.UNAVAILABLE
    await victim.cluster.running("router", "router", after=killed.epoch)
    await victim.cluster.within(_reachable(victim))
    await serves_again(victim, expected)
    assert await victim.cluster.running("worker", "tiny") == worker


async def _reachable(victim: Served) -> None:
    while True:
        try:
            await victim.client.status()
        except RemoteError:
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("stage", STAGES)
async def test_a_killed_supervisor_breaks_no_stream_and_the_next_adopts_all(
    victim: Served, expected: Completion, stage: str
) -> None:
    running = {name: await victim.cluster.running("worker", name) for name in ("tiny", "script")}
    router = await victim.cluster.running("router", "router")
    waiting = await STAGES[stage](victim)
    await victim.cluster.kill_supervisor()
    await victim.cluster.within(waiting, timeout_s=60.0)  # ends well
    await serves_again(victim, expected)
    await victim.cluster.up()
    for name, process in running.items():
        assert (await victim.cluster.running("worker", name)).pid == process.pid
    assert (await victim.cluster.running("router", "router")).pid == router.pid
    await serves_again(victim, expected)


async def test_streams_deliver_every_token_once_over_a_supervisor_s_death(victim: Served) -> None:
    deltas: list[Delta] = []
    options = Options(max_tokens=600, temperature=0.0)
    async with aclosing(victim.client.generate("script", ENDLESS, **options)) as events:
        async for event in events:
            if isinstance(event, Delta):
                deltas.append(event)
                if len(deltas) == 3:
                    await victim.cluster.kill_supervisor()
    assert "".join(delta.text for delta in deltas) == "abc " * 150
    await victim.cluster.up()
