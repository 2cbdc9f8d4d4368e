"""Three models take turns in memory for two: each answer is right, and the ledger never over."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles

import pytest

from bramley.client.client import AsyncClient
from bramley.client.requests import Options
from bramley.protos.v1 import node_pb2
from support.baseline import at_rest, metric, strays
from support.served import Served, serving

NAMES = ("tiny", "sliding", "hybrid")
PROMPTS = ("Once upon a time", "It was a dark and stormy night", "Call me")
ASKED: Options = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0}
CANCELS = 0.1
GAP_S = 0.03  # the mean time between two that come
TAKES = 300_000_000
STORE = 50_000_000
BUDGET = 2 * TAKES + STORE + TAKES // 2
WAIT_S = 90.0  # of 95 in 100, at most: dozens of loads on a machine with other things to do
CALL_S = 180.0

Oracle = dict[tuple[str, str], list[int]]


def settings(models: Path) -> str:
    tables = "".join(
        f'[models.{name}]\npath = "{models}/{name}"\nload = "demand"\nmemory_bytes = {TAKES}\n'
        for name in NAMES
    )
    return f"""
{tables}
[router]
memory_bytes = {BUDGET}
[router.classes.default]
queue_timeout_s = {CALL_S}
[store]
ram_bytes = {STORE}
disk_bytes = 200000000
staging_bytes = 8000000
"""


class Samples:
    """What was seen of ledger and processes, over and over.

    Attributes:
        seen: how often it was looked.
        over: ledgers that held more than there is.
        most: workers that lived at one time.
        epochs: incarnations of each model's worker.
        reserved: models that held memory at one time, at most.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self.seen = self.most = self.reserved = 0
        self.over: list[object] = []
        self.epochs: dict[str, set[int]] = {name: set() for name in NAMES}

    async def look(self) -> None:
        """Look once."""
        self.seen += 1
        status = await self._served.client.status()
        assert status.memory is not None
        assert status.memory.budget_bytes == BUDGET
        if status.memory.reserved_bytes + status.memory.store_bytes > BUDGET:
            self.over.append(status.memory)
        holding = sum(bool(one.reserved_bytes) for one in status.models)
        self.reserved = max(self.reserved, holding)
        workers = [name for role, name in self._served.cluster.children() if role == "worker"]
        self.most = max(self.most, len(workers))

    def note(self, processes: list[node_pb2.Process]) -> bool:
        """Take in what the node tells of its processes."""
        for one in processes:
            if one.role == "worker" and one.pid:
                self.epochs[one.name].add(one.epoch)
        return False


@asynccontextmanager
async def sampling(served: Served) -> AsyncGenerator[Samples]:
    """Look all the time, for the length of the block."""
    samples = Samples(served)

    async def look() -> None:
        while True:
            await samples.look()
            await asyncio.sleep(0.02)

    async def follow() -> None:
        async with served.cluster.stub() as stub:
            async for response in stub.Watch(node_pb2.WatchRequest()):
                samples.note(list(response.processes))

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(look()), tasks.create_task(follow())]
        yield samples
        for task in running:
            task.cancel()


class Crowd:
    """Requests of a seed, in any order; some leave.

    Args:
        client: asks.
        oracle: the right answers.
        count: how many come.

    Attributes:
        waits_s: of those that were answered.
        left: how many did not wait for their answer.
    """

    def __init__(self, client: AsyncClient, oracle: Oracle, count: int) -> None:
        self._client = client
        self._oracle = oracle
        self._count = count
        self._dice = random.Random(11)  # noqa: S311
        self.waits_s: list[float] = []
        self.left = 0

    async def run(self) -> None:
        """Have them come, and wait for all of them."""
        dice = self._dice
        async with asyncio.TaskGroup() as requests:
            for _ in range(self._count):
                patience_s = dice.uniform(0.0, 2.0) if dice.random() < CANCELS else None
                requests.create_task(self._one(dice.choice(list(self._oracle)), patience_s))
                await asyncio.sleep(dice.expovariate(1 / GAP_S))

    async def _one(self, asked: tuple[str, str], patience_s: float | None) -> None:
        name, prompt = asked
        asked_s = time.monotonic()
        call = self._client.complete(name, prompt, timeout_s=CALL_S, **ASKED)
        task = asyncio.create_task(call)
        await asyncio.wait([task], timeout=patience_s)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            self.left += 1
            return
        assert (await task).token_ids == self._oracle[asked]
        self.waits_s.append(time.monotonic() - asked_s)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.slow)])
async def test_three_models_share_the_memory_of_two(
    tmp_path: Path, count: int, record_property: Callable[[str, object], None]
) -> None:
    async with serving(tmp_path, settings, until_ready=None) as served:
        assert {one.state for one in await served.client.list_models()} == {"unloaded"}
        async with sampling(served) as samples:
            oracle = {
                (name, prompt): await plain(served.client, name, prompt)
                for name in NAMES
                for prompt in PROMPTS
            }
            crowd = Crowd(served.client, oracle, count)
            await crowd.run()
            await at_rest(served)
        starts = sum(map(len, samples.epochs.values()))
        loads = await loads_of(served)
        p95_s = quantiles(crowd.waits_s, n=20)[-1]
        told = f"p95 {p95_s:.1f} s, {loads} loads, {crowd.left} left, {samples.seen} looks"
        record_property("row", told)
        print(told)  # noqa: T201
        assert not samples.over
        assert samples.seen > 100
        assert (samples.most, samples.reserved) == (2, 2)
        assert starts == loads > len(NAMES)
        assert len(crowd.waits_s) + crowd.left == count
        assert p95_s < WAIT_S
        assert not strays(served)


async def plain(client: AsyncClient, name: str, prompt: str) -> list[int]:
    """Answer greedily, without anything that is cached."""
    alone: Options = {**ASKED, "skip_lookup": True, "skip_store": True}
    return (await client.complete(name, prompt, timeout_s=CALL_S, **alone)).token_ids


async def loads_of(served: Served) -> int:
    """Count the loads so far: each ended in an unload, or has not ended."""
    loaded = sum(bool(one.reserved_bytes) for one in await served.client.list_models())
    return loaded + int(await metric(served, "bramley_router_model_unloads_total"))
