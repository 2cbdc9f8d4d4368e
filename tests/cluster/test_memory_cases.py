"""B064: what many requests need is given back, whatever they end with; too much fails alone."""

import asyncio
import random
from contextlib import aclosing
from pathlib import Path

import grpc
import psutil
import pytest

from bramley.client.events import Delta
from bramley.client.requests import Options
from bramley.client.store import Store
from bramley.common.status import RemoteError
from support.baseline import at_rest
from support.faulty import MARKER
from support.lab import Lab, lab

AT_ONCE = 6
QUARTERS = 4
SHARE = 0.05  # by which the last three quarters differ at most
SLACK_BYTES = 2 << 20
RAM_BYTES, DISK_BYTES = 12_000_000, 24_000_000
MODELS = """
[models.tiny]
path = "{models}/tiny"
max_rows = 4
parked_bytes = 1000000
[models.capped]
path = "{models}/tiny"
state_bytes = 400000
"""
SMALL = f"""
[store]
ram_bytes = {RAM_BYTES}
disk_bytes = {DISK_BYTES}
staging_bytes = 4000000
[node]
"""


class Requests:
    """Short requests of a seed: one in ten leaves, one in ten fails."""

    def __init__(self, bench: Lab) -> None:
        self._served = bench.served
        self._dice = random.Random(3)  # noqa: S311
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.failed = self.left = 0

    async def run(self, first: int, count: int) -> None:
        """Ask so many, with prompts that differ from their first token on."""
        await asyncio.gather(*[self._one(first + number) for number in range(count)])

    async def _one(self, number: int) -> None:
        async with self._turns:
            chance = self._dice.random()
            prompt = f"{number} {MARKER if chance < 0.1 else 'asks'} " * self._dice.randrange(1, 40)
            leaves_after = self._dice.randrange(5) if 0.1 <= chance < 0.2 else -1
            options = Options(max_tokens=self._dice.randrange(4, 24), ignore_eos=True)
            call = self._served.client.generate("tiny", prompt, **options)
            seen = 0
            try:
                async with aclosing(call) as events:
                    async for _ in events:
                        seen += 1
                        if seen > leaves_after >= 0:
                            self.left += 1
                            return
            except RemoteError as error:
                if error.reason != "ENGINE_FAULT" or MARKER not in prompt:
                    raise
                self.failed += 1


def store_bytes(bench: Lab) -> tuple[int, int]:
    with Store(f"unix:{bench.served.cluster.node.run_dir}/store.sock") as store:
        gauges = store.stats().gauges
    return gauges["ram_bytes"], gauges["ssd_bytes"]


@pytest.mark.parametrize(
    "count", [200, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_b064_memory_at_rest_is_the_same_after_any_number_of_requests(
    tmp_path: Path, count: int
) -> None:
    async with lab(tmp_path, MODELS.partition("[models.capped]")[0], SMALL) as bench:
        requests = Requests(bench)
        resident: list[int] = []
        active: list[int] = []
        pid = bench.served.cluster.children()["worker", "tiny"]
        with bench.fault("fail", "detokenize"):
            for quarter in range(QUARTERS):
                await requests.run(quarter * count // QUARTERS, count // QUARTERS)
                await at_rest(bench.served)
                resident.append(psutil.Process(pid).memory_info().rss)
                active.append((await bench.idle("tiny")).memory_bytes)
                ram, disk = await asyncio.to_thread(store_bytes, bench)
                assert ram <= RAM_BYTES
                assert disk <= DISK_BYTES
        print({"resident": resident, "active": active})  # noqa: T201
        _, *settled = resident
        assert max(settled) - min(settled) <= SHARE * max(settled) + SLACK_BYTES, resident
        # Of a model so small the rows are most, and an idle engine keeps more of them or less.
        assert active[-1] <= (1 + SHARE) * max(active[:-1]), active
        assert min(requests.failed, requests.left) > count // 20
        assert bench.served.cluster.children()["worker", "tiny"] == pid


async def test_b064_a_prompt_that_takes_too_much_fails_alone(tmp_path: Path) -> None:
    async with lab(tmp_path, MODELS, SMALL) as bench:
        served = bench.served
        options = Options(max_tokens=150, ignore_eos=True, temperature=0.0)
        before = served.cluster.children()
        seen: list[int] = []
        begun = asyncio.Event()

        async def stream() -> None:
            async with aclosing(served.client.generate("tiny", "beside", **options)) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        seen.extend(event.token_ids)
                        begun.set()

        with bench.fault("slow"):
            beside = asyncio.create_task(stream())
            await served.cluster.within(begun.wait())
            with pytest.raises(RemoteError) as raised:
                await served.completed("capped", "y" * 3000, max_tokens=8)
        assert raised.value.status_code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.value.reason == "DEVICE_OOM"
        await served.cluster.within(beside)
        alone: Options = {**options, "skip_lookup": True}
        plain = await served.completed("tiny", "beside", **alone)
        assert seen == plain.token_ids
        assert (await served.completed("capped", "small", max_tokens=8)).token_ids
        assert served.cluster.children() == before
