"""A worker that fails at any stage: what its client sees, and that nothing is left behind.

Each scene runs beside two healthy streams of the same worker, which end as if nothing had been.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from typing import Any

import grpc
import pytest

from bramley.common.ids import ModelName
from bramley.common.status import RemoteError
from bramley.protos.v1 import types_pb2
from bramley.router.booking import Ledger
from bramley.router.gate import Gate
from support.fake_worker import hash_of
from support.routing import (
    Bench,
    ask,
    collect,
    collect_until_error,
    kinds_of,
    read_until,
    routed,
    text_of,
    until,
)
from support.script import Script

STOP = types_pb2.FINISH_REASON_STOP
TEN = "".join(f"{n} " for n in range(10))
SLOW = {"fake.tokens": "10", "fake.interval_s": "0.05"}


def gate_of(bench: Bench) -> Gate:
    return bench.router.models.gates[ModelName("fake")]


async def nothing_is_left(bench: Bench) -> None:
    """Wait until no request is counted anywhere."""
    gate = gate_of(bench)
    await until(lambda: (gate.running_count, gate.waiting_count) == (0, 0))
    assert gate.replicas.booked() == Ledger()
    assert len(bench.router.server.registry) == 0
    for worker in bench.node.workers.values():
        await until(lambda worker=worker: worker.running == 0)


def refused_at(stage: str) -> list[str]:
    """What was sent before."""
    seen = {"prepare": [], "accepted": ["accepted"], "started": ["accepted", "started"]}
    return seen.get(stage, ["accepted", "started", "delta"])


@pytest.mark.parametrize("stage", ["prepare", "accepted", "started", "delta"])
@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("fault", grpc.StatusCode.INTERNAL, "ENGINE_FAULT"),
        ("oom", grpc.StatusCode.RESOURCE_EXHAUSTED, "DEVICE_OOM"),
        ("bad_field", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
    ],
)
async def test_b059_an_error_at_any_stage_ends_its_request_alone(
    stage: str, fault: str, code: grpc.StatusCode, reason: str
) -> None:
    async with routed() as bench:
        healthy = [asyncio.create_task(collect(bench.stub.Generate(ask(labels=SLOW))))]
        healthy.append(asyncio.create_task(collect(bench.stub.Generate(ask(labels=SLOW)))))
        started_s = time.monotonic()
        call = bench.stub.Generate(ask(labels={f"fake.{fault}": stage}))
        seen, raised = await collect_until_error(call)
        assert time.monotonic() - started_s < 1.0
        error = RemoteError(raised)
        assert (error.status_code, error.reason) == (code, reason)
        assert kinds_of(seen) == refused_at(stage)
        assert [text_of(await one) for one in healthy] == [TEN, TEN]
        await nothing_is_left(bench)


@pytest.mark.parametrize("stage", ["accepted", "started", "delta"])
async def test_b053_a_stream_that_ends_without_a_finish_is_an_error(stage: str) -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(labels={"fake.end": stage}))
        seen, raised = await collect_until_error(call)
        error = RemoteError(raised)
        assert (error.status_code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
        assert kinds_of(seen) == refused_at(stage)
        tries = 1 if stage == "delta" else 3
        assert len(bench.node.workers["fake"].generated) == tries
        assert text_of(await collect(bench.stub.Generate(ask(labels=SLOW)))) == TEN
        await nothing_is_left(bench)


async def test_b053_a_worker_that_dies_is_an_error_once_a_token_was_sent() -> None:
    async with routed() as bench:
        seen, raised = await collect_until_error(
            bench.stub.Generate(ask(labels={"fake.die": "delta"}))
        )
        assert RemoteError(raised).reason == "WORKER_LOST"
        read = bench.router.metrics.registry.get_sample_value
        labels = {"model": "fake", "reason": "worker_lost"}
        assert not read("bramley_router_refusals_total", labels)  # a worker had it
        numbers = text_of(seen).split()
        assert numbers == [str(n) for n in range(len(numbers))]
        await nothing_is_left(bench)


async def test_b053_a_finish_without_a_token_is_an_answer() -> None:
    async with routed() as bench:
        responses = await collect(bench.stub.Generate(ask(labels={"fake.finish": "started"})))
        assert kinds_of(responses) == ["accepted", "started", "finished"]
        finished = responses[-1].finished
        assert (finished.reason, finished.usage.prompt_tokens) == (STOP, 5)
        assert finished.usage.completion_tokens == 0
        await nothing_is_left(bench)


@pytest.mark.parametrize("stage", ["accepted", "started", "delta"])
async def test_a_client_that_leaves_at_any_stage_leaves_nothing(stage: str) -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(labels={"fake.stall": stage}))
        await read_until(call, refused_at(stage)[-1])
        started_s = time.monotonic()
        call.cancel()
        await nothing_is_left(bench)
        assert time.monotonic() - started_s < 1.0
        assert bench.node.workers["fake"].cancelled == bench.node.workers["fake"].generated


async def test_a_client_that_leaves_at_prepare_reaches_no_worker_s_engine() -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(labels={"fake.stall": "prepare"}))
        await until(lambda: len(bench.node.workers["fake"].prepared) == 1)
        call.cancel()
        await nothing_is_left(bench)
        assert bench.node.workers["fake"].generated == []


async def test_b062_dropped_clients_leave_no_ghost_load() -> None:
    rng = random.Random(7)  # noqa: S311
    async with routed(Script(max_rows=4, tokens=4), replicas={"fake": 2}) as bench:
        await bench.all_ready(2)

        async def drop() -> None:
            labels = {"fake.tokens": "40", "fake.interval_s": "0.002", "fake.prefill_s": "0.02"}
            call: Any = bench.stub.Generate(ask(labels=labels))
            for _ in range(rng.randrange(4)):
                await call.read()
            await asyncio.sleep(rng.random() * 0.02)
            call.cancel()

        await asyncio.gather(*[drop() for _ in range(200)])
        await nothing_is_left(bench)
        assert max(await spread(bench)) <= 26
        await bench.node.kill("fake")
        await bench.node.start("fake")
        await bench.all_ready(2)
        assert max(await spread(bench)) <= 26
        await nothing_is_left(bench)


async def spread(bench: Bench) -> list[int]:
    """Ask forty times, eight at a time; how many each worker answered."""
    counted: Counter[str] = Counter()

    async def client() -> None:
        for _ in range(5):
            responses = await collect(bench.stub.Generate(ask(labels={"fake.interval_s": "0.005"})))
            counted[responses[1].started.worker.rpartition("-")[0]] += 1

    await asyncio.gather(*[client() for _ in range(8)])
    assert counted.total() == 40
    assert len(counted) == 2
    return list(counted.values())


async def test_a_conversation_goes_where_its_row_is_until_that_worker_has_too_much_to_do() -> None:
    async with routed(Script(max_rows=8), replicas={"fake": 2}) as bench:
        bench.node.scripts["fake@2"] = Script(max_rows=8, row_chains=["one"])
        await bench.all_ready(2)
        await bench.node.kill("fake@2")
        await bench.node.start("fake@2")
        await bench.all_ready(2)
        await until(lambda: gate_of(bench).replicas.row_tokens([hash_of("one")]) > 0)
        labels = {"fake.stall": "started", "blocks": "one two"}
        prompt = "x" * 300
        went: list[str] = []
        calls: list[Any] = []
        for _ in range(6):
            calls.append(bench.stub.Generate(ask(text=prompt, labels=labels)))
            started = (await read_until(calls[-1], "started")).started
            went.append(started.worker.rpartition("-")[0])
        assert went == ["fake@2"] * 5 + ["fake"]
        assert gate_of(bench).replicas.booked().prefill_tokens == 5 * (300 - 256) + 300
        for call in calls:
            call.cancel()
        await nothing_is_left(bench)
        assert hash_of("two") != hash_of("one")


async def test_memory_is_booked_by_the_worker_s_own_figures_and_released() -> None:
    async with routed(Script(token_bytes=1000)) as bench:
        call = bench.stub.Generate(
            ask(text="x" * 10, stop={"max_tokens": 20}, labels={"fake.stall": "started"})
        )
        await read_until(call, "started")
        assert gate_of(bench).replicas.booked() == Ledger(1, 10, 30_000)
        call.cancel()
        await nothing_is_left(bench)


async def test_whatever_happens_to_many_requests_nothing_is_lost_doubled_or_left() -> None:
    faults = ("fault", "oom", "end", "die", "bad_field", "")
    stages = ("prepare", "accepted", "started", "delta")
    async with routed(Script(max_rows=3, tokens=6), replicas={"fake": 2}) as bench:
        await bench.all_ready(2)

        async def one(number: int, fault: str, stage: str) -> None:
            labels = {f"fake.{fault}": stage} if fault else {}
            labels["fake.interval_s"] = "0.002"
            call: Any = bench.stub.Generate(ask(text=f"hello {number}", labels=labels))
            seen = []
            try:
                seen = await collect(call)
            except grpc.aio.AioRpcError:
                assert fault
            else:
                assert kinds_of(seen) == ["accepted", "started", "delta", "finished"]
                assert text_of(seen) == "0 1 2 3 4 5 "

        async def revive() -> None:
            while True:
                for name in ("fake", "fake@2"):
                    if name not in bench.node.workers:
                        await bench.node.start(name)
                await asyncio.sleep(0.02)

        reviving = asyncio.create_task(revive())
        scenes = enumerate(itertools.product(faults, stages))
        tasks = [asyncio.create_task(one(n, *scene)) for n, scene in scenes if scene[0] != "die"]
        await asyncio.gather(*tasks)
        for stage in stages:
            await one(1000, "die", stage)
            await bench.all_ready(2)
        reviving.cancel()
        await nothing_is_left(bench)
