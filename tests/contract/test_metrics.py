"""Metrics tell what is: gauges return to 0, series are few and leave with their model."""

import asyncio
import random
import re
import string
from pathlib import Path

import grpc
import pytest

from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from support.http import Series, fetch, scrape, series
from support.routing import Bench, ask, collect, read_until, routed, until
from support.script import Script

HTTP = "127.0.0.1:0"
STALLED = {"fake.stall": "started"}
ROOT = Path(__file__).parents[2]

GAUGES = (
    *("requests_in_flight", "queue_depth", "booked_requests", "booked_prefill_tokens"),
    *("booked_memory_bytes", "worker_requests_running", "worker_requests_waiting"),
    *("worker_last_step_age_seconds", "snapshots_owed"),
)


async def read(bench: Bench) -> dict[Series, float]:
    return await scrape(bench.router.addresses["http"])


def busy(seen: dict[Series, float]) -> dict[Series, float]:
    """Find the gauges of load that are not 0."""
    names = {f"bramley_router_{name}" for name in GAUGES}
    assert names <= {name for name, _ in seen}
    return {key: value for key, value in seen.items() if key[0] in names and value}


async def until_at_rest(bench: Bench) -> None:
    async with asyncio.timeout(5):
        while busy(await read(bench)):  # noqa: ASYNC110 the worker's next report sets them
            await asyncio.sleep(0.02)


async def test_a_request_leaves_its_times_and_its_tokens() -> None:
    async with routed(Script(tokens=4, interval_s=0.01), http=HTTP) as bench:
        await collect(bench.stub.Generate(ask()))
        seen = await read(bench)
        mean = seen[series("inter_token_latency_seconds_sum", model="fake")]
        assert seen[series("inter_token_latency_seconds_count", model="fake")] == 1
        assert 0.005 < mean < 0.5
        for tier in ("parked", "ram", "ssd"):
            assert seen[series("cached_tokens_total", model="fake", tier=tier)] == 0
        assert seen[series("model_load_seconds_count", model="fake")] == 1
        assert seen[series("breaker_state", model="fake", worker="fake", state="closed")] == 1
        assert seen[series("worker_state", model="fake", worker="fake", state="READY")] == 1


async def test_one_token_has_no_time_between_two() -> None:
    async with routed(http=HTTP) as bench:
        await collect(bench.stub.Generate(ask(stop={"max_tokens": 1})))
        seen = await read(bench)
        assert seen[series("inter_token_latency_seconds_count", model="fake")] == 0


@pytest.mark.parametrize("how", ["client", "abort"])
async def test_a_cancel_is_timed(how: str) -> None:
    async with routed(http=HTTP) as bench:
        call = bench.stub.Generate(ask(request_id="mine", labels=STALLED))
        await read_until(call, "started")
        if how == "client":
            call.cancel()
        else:
            await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
            await collect(call)
        await until(lambda: len(bench.router.server.registry) == 0)
        seen = await read(bench)
        assert seen[series("cancel_latency_seconds_count", model="fake")] == 1
        assert seen[series("cancel_latency_seconds_sum", model="fake")] < 1
        assert seen[series("cancellations_total", model="fake", source=how)] == 1


async def test_b071_gauges_are_0_after_all_clients_left_at_once() -> None:
    async with routed(Script(max_rows=4), http=HTTP) as bench:
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(20)]
        for call in calls:
            await read_until(call, "accepted")
        server = bench.router.server
        await until(lambda: bench.node.workers["fake"].running == 4)
        assert series("queue_depth", **{"model": "fake", "class": "default"}) in busy(
            await read(bench)
        )
        for call in calls:
            call.cancel()
        await until(lambda: len(server.registry) == 0)
        await until_at_rest(bench)
        await collect(bench.stub.Generate(ask()))


async def test_b071_gauges_are_0_after_the_worker_was_killed() -> None:
    async with routed(Script(max_rows=4, memory_bytes=1 << 30), http=HTTP) as bench:
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(8)]
        for call in calls:
            await read_until(call, "accepted")
        await until(lambda: bench.node.workers["fake"].running == 4)
        await bench.node.kill("fake")
        await bench.state(types_pb2.MODEL_STATE_STARTING)
        for call in calls:
            call.cancel()
        await until(lambda: len(bench.router.server.registry) == 0)
        await until_at_rest(bench)
        seen = await read(bench)
        for name in ("memory_resident_bytes", "worker_state_limit_bytes"):
            assert seen[series(name, model="fake", worker="fake")] == 0
        assert seen[series("worker_state", model="fake", worker="fake", state="READY")] == 0
        await bench.node.start("fake")
        await bench.ready()
        restarts = (await read(bench))[
            series("worker_restarts_total", model="fake", reason="killed")
        ]
        assert restarts == 1
        await collect(bench.stub.Generate(ask()))


def odd_requests(count: int) -> list[generation_pb2.GenerateRequest]:
    """Make requests whose every text is random: no model of ours, or labels that nobody knows."""
    dice = random.Random(7)  # noqa: S311

    def word() -> str:
        return "".join(dice.choices(string.printable, k=12))

    made = [
        generation_pb2.GenerateRequest(
            request_id=word(),
            model=dice.choice(["", "fake", word()]),
            text=dice.choice(["", word()]),
            adapter=word(),
            fairness_key=word() * dice.choice([1, 100]),
            session_key=word(),
            labels={word(): word()},
            stop=types_pb2.StopConditions(strings=[word()], max_tokens=1),
        )
        for _ in range(count)
    ]
    names = ("x" * 10_000, 'a"b\nc\\d', "é\u2028", "fake@2", "fake/..", " fake")
    return made + [generation_pb2.GenerateRequest(model=name, text="x") for name in names]


async def send(bench: Bench, requests: list[generation_pb2.GenerateRequest]) -> None:
    waiting = iter(requests)

    async def client() -> None:
        for request in waiting:
            call = bench.stub.Generate(request)
            try:
                await collect(call)
            except grpc.aio.AioRpcError:
                continue

    await asyncio.gather(*[client() for _ in range(16)])


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
async def test_b073_what_callers_write_makes_no_series(count: int) -> None:
    async with routed(http=HTTP) as bench:
        await send(bench, odd_requests(30))
        before = await read(bench)
        await send(bench, odd_requests(count))
        after = await read(bench)
        refusals = {key for key in after if key[0].startswith("bramley_router_refusals")}
        assert len(after) - len(before) <= 10
        assert len(refusals) < 20
        models = {dict(labels).get("model", "fake") for _, labels in after}
        assert models == {"", "fake"}
        total = series("requests_total", model="", code="NOT_FOUND", finish="none")
        assert after[total] > before[total]


async def test_a_model_that_left_leaves_no_series() -> None:
    async with routed(models=("one", "two"), http=HTTP) as bench:
        metrics = bench.router.metrics
        gone = bench.router.models.by_name[next(iter(bench.router.models.by_name))].metrics
        await collect(bench.stub.Generate(ask(model="one")))
        metrics.drop_model(next(iter(bench.router.models.by_name)))
        gone.ended("OK", types_pb2.FINISH_REASON_STOP)  # its last request ends later
        gone.refused("QUEUE_FULL")
        seen = await read(bench)
        assert {dict(labels).get("model") for _, labels in seen} == {None, "two"}


def test_x4_no_gauge_is_moved_by_steps() -> None:
    moved = re.compile(r"\.dec\(|\.track_inprogress\(")
    folders = ("router", "worker", "cachestore", "common", "deploy")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    assert [path.name for path in files if moved.search(path.read_text())] == []


async def test_the_loop_s_lag_is_sampled() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        async with asyncio.timeout(5):
            while not (await read(bench))[series("event_loop_lag_seconds_count")]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_every_metric_is_on_the_page_of_metrics() -> None:
    async with routed(http=HTTP) as bench:
        text = (await fetch(bench.router.addresses["http"], "/metrics")).body.decode()
        page = (ROOT / "docs/metrics.md").read_text()
        names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        shown = {name for name in names if not name.endswith("_created")}
        assert {name for name in shown if f"`{name}`" not in page} == set()
