"""B060: health tells the truth of a worker that cannot generate, and others take its requests."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bramley.client.events import Completion
from bramley.client.requests import Options
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from support.baseline import at_rest, metric
from support.lab import RESTING, Lab, lab
from support.served import Served

HANG_S = 4.0  # router.hang_timeout_s
TOLD_S = HANG_S + 10.0  # by when health says so
NOTICED_S = 15.0  # the same, whatever the hang timeout: nothing was heard for 5 s
GONE_S = HANG_S + 20.0  # by when it is replaced, counted from then
BACK_S = 40.0  # by when a model is served again, its load included
SOON_S = 10.0  # no wait for anybody's end, on a machine that has other things to do
SERVING = health_pb2.HealthCheckResponse.SERVING
MODELS = """
[models.lone]
path = "{models}/tiny"
[models.pair]
path = "{models}/tiny"
replicas = 2
"""
PATIENT = f"""
[router]
hang_timeout_s = {HANG_S}
{RESTING}
crash_loop_starts = 50  # what fails on purpose is tried again soon
"""
VICTIMS = ("lone", "pair@2")
TOKENS = 8
ASKED: Options = {"max_tokens": TOKENS, "ignore_eos": True}


class Watched:
    """What health said of a model, from the start of the block on."""

    def __init__(self) -> None:
        self.said: list[tuple[float, bool]] = []

    async def until(self, *, serving: bool, within_s: float) -> float:
        """Wait until it says so.

        Returns:
            When it did.
        """
        async with asyncio.timeout(within_s):
            while not self.said or self.said[-1][1] != serving:  # noqa: ASYNC110 a list
                await asyncio.sleep(0.01)
        return self.said[-1][0]


@asynccontextmanager
async def watching(target: str, model: str) -> AsyncGenerator[Watched]:
    """Follow the health of a model."""
    watched = Watched()

    async def follow() -> None:
        async with open_channel(target) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            call = stub.Watch(health_pb2.HealthCheckRequest(service=f"model/{model}"))
            async for response in call:
                watched.said.append((time.monotonic(), response.status == SERVING))

    task = asyncio.create_task(follow())
    try:
        await watched.until(serving=True, within_s=5.0)
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Lab]:
    """A model of one worker and one of two, each of which may fail."""
    async with lab(tmp_path_factory.mktemp("health"), MODELS, PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
async def oracle(bench: Lab) -> Completion:
    return await bench.served.completed("lone", "once", **ASKED)


HOW = {
    "it is killed": "",
    "it is stopped": "",
    "its step thread ends": "die",
    "its step thread hangs": "hang",
    "it exits at load": "no-load",
}


@contextmanager
def faults(bench: Lab, how: str) -> Generator[list[int]]:
    """Have a fault in both victims for the length of the block.

    Yields:
        Their pids.
    """
    children = bench.served.cluster.children()
    pids = [children["worker", name] for name in VICTIMS]
    with ExitStack() as stack:
        if name := HOW[how]:
            for worker in VICTIMS:
                stack.enter_context(bench.fault(name, worker=worker))
        for pid in pids:
            if how in {"it is killed", "it exits at load"}:
                psutil.Process(pid).kill()
            elif how == "it is stopped":
                psutil.Process(pid).send_signal(signal.SIGSTOP)
        yield pids


@pytest.mark.parametrize(
    "how",
    # Who exits at load was killed, too.
    [pytest.param(how, marks=[pytest.mark.slow] * (how == "it is killed")) for how in HOW],
)
async def test_b060_health_says_so_requests_go_elsewhere_and_the_worker_comes_back(
    bench: Lab, oracle: Completion, how: str
) -> None:
    served = bench.served
    await served.cluster.within(all_ready(served))
    target = served.client.target
    async with watching(target, "lone") as lone, watching(target, "pair") as pair:
        began_s = time.monotonic()
        with faults(bench, how) as pids:
            met = [  # a fault of the step thread needs a step
                asyncio.create_task(served.completed(model, f"{how} {number}", **ASKED))
                for model, number in (("lone", 0), *(("pair", n) for n in range(8)))
            ]
            told_s = await lone.until(serving=False, within_s=TOLD_S) - began_s
            if how in {"it is stopped", "its step thread hangs", "it exits at load"}:
                await others_serve(served)
            async with asyncio.timeout(GONE_S):
                await served.cluster.gone(*pids)
        ends = await served.cluster.within(asyncio.gather(*met, return_exceptions=True))
        assert all(map(is_in_order, ends)), ends
        await lone.until(serving=True, within_s=BACK_S)
        assert all(is_serving for _, is_serving in pair.said)
    assert told_s < TOLD_S
    await served.cluster.running("worker", "pair@2")
    again = await served.completed("lone", "once", **ASKED)
    assert again.token_ids == oracle.token_ids
    await at_rest(served)


async def all_ready(served: Served) -> None:
    """Wait until the router has each of the three workers ready: an earlier fault took two."""
    while await metric(served, "bramley_router_worker_state", state="READY") < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def others_serve(served: Served) -> None:
    """Check that who has a worker left is answered, and who has none is told so at once."""
    for number in range(5):
        asked_s = time.monotonic()
        answer = await served.completed("pair", f"elsewhere {number}", **ASKED)
        assert len(answer.token_ids) == TOKENS
        assert time.monotonic() - asked_s < SOON_S
    asked_s = time.monotonic()
    with pytest.raises(RemoteError) as raised:
        await served.completed("lone", "is anybody there", max_queue_s=0.2)
    assert raised.value.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}, raised.value
    assert time.monotonic() - asked_s < SOON_S


def is_in_order(end: object) -> bool:
    """Whether a request that met the fault was answered, or told what befell its worker."""
    return isinstance(end, Completion) or (
        isinstance(end, RemoteError) and end.code == "UNAVAILABLE"
    )


async def test_b060_health_recovers_by_itself_when_a_stopped_worker_goes_on(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, MODELS.partition("[models.pair]")[0]) as bench:
        served = bench.served
        expected = await served.completed("lone", "once", **ASKED)
        worker = await served.cluster.running("worker", "lone")
        process = psutil.Process(worker.pid)
        async with watching(served.client.target, "lone") as lone:
            process.send_signal(signal.SIGSTOP)
            await lone.until(serving=False, within_s=NOTICED_S)
            assert (await served.client.get_model("lone")).state == "degraded"
            process.send_signal(signal.SIGCONT)
            await lone.until(serving=True, within_s=SOON_S)
        again = await served.completed("lone", "once", **ASKED)
        assert again.token_ids == expected.token_ids
        assert await served.cluster.running("worker", "lone") == worker
