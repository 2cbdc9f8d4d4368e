"""What a queue promises: order, bounds, and that who left is forgotten."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from bramley.common.status import RemoteError
from bramley.protos.v1 import node_pb2, router_pb2, types_pb2
from bramley.router.classes import Classes, DefaultRule
from support.routing import Bench, ask, collect, read_until, routed, text_of, until
from support.script import Script

STALLED = {"fake.stall": "started"}


def gate_counts(bench: Bench) -> tuple[int, int]:
    gate = next(iter(bench.router.models.gates.values()))
    return gate.running_count, gate.waiting_count


async def test_no_more_run_than_the_worker_has_rows() -> None:
    async with routed(Script(max_rows=3, tokens=5, interval_s=0.002)) as bench:
        calls = [collect(bench.stub.Generate(ask())) for _ in range(20)]
        answers = await asyncio.gather(*calls)
        assert all(text_of(answer) == "0 1 2 3 4 " for answer in answers)
        assert bench.node.workers["fake"].running_most == 3


async def test_settings_may_allow_fewer_than_the_worker_does() -> None:
    async with routed(Script(max_rows=3, tokens=3), running_max={"fake": 1}) as bench:
        await asyncio.gather(*[collect(bench.stub.Generate(ask())) for _ in range(6)])
        assert bench.node.workers["fake"].running_most == 1


async def test_b058_a_request_dropped_while_waiting_never_reaches_a_worker() -> None:
    async with routed(Script(max_rows=1, tokens=2)) as bench:
        running = bench.stub.Generate(ask(labels=STALLED))
        await until(lambda: gate_counts(bench) == (1, 0))
        calls: list[Any] = []
        for position in range(3):  # one after another: calls sent together may arrive in any order
            calls.append(bench.stub.Generate(ask()))
            assert (await read_until(calls[-1], "accepted")).accepted.queue_position == position
        await until(lambda: gate_counts(bench) == (1, 3))
        calls[1].cancel()
        await until(lambda: gate_counts(bench) == (1, 2))
        running.cancel()
        for call in (calls[0], calls[2]):
            assert text_of(await collect(call)) == "0 1 "
        await until(lambda: gate_counts(bench) == (0, 0))
        assert len(bench.node.workers["fake"].generated) == 3


async def test_a_full_queue_refuses_at_once_and_says_when_to_return() -> None:
    async with routed(
        Script(max_rows=1), classes=Classes(default=DefaultRule(queue_max=2))
    ) as bench:
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(3)]
        await until(lambda: gate_counts(bench) == (1, 2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask()))
        error = RemoteError(caught.value)
        assert error.status_code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.reason == "QUEUE_FULL"
        assert error.facts == {"model": "fake", "class": "default", "depth": "2"}
        assert error.retry_after_s
        for call in calls:
            call.cancel()
        await until(lambda: gate_counts(bench) == (0, 0))


async def test_a_request_waits_no_longer_than_it_may() -> None:
    async with routed(Script(max_rows=1)) as bench:
        running = bench.stub.Generate(ask(labels=STALLED))
        await until(lambda: gate_counts(bench) == (1, 0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask(max_queue_time=Duration(nanos=50_000_000))))
        error = RemoteError(caught.value)
        assert error.status_code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.reason == "QUEUE_TIMEOUT"
        assert gate_counts(bench) == (1, 0)
        running.cancel()


async def test_no_time_to_wait_is_enough_on_a_free_worker() -> None:
    async with routed(Script(tokens=1)) as bench:
        assert text_of(await collect(bench.stub.Generate(ask(max_queue_time=Duration())))) == "0 "


async def test_requests_wait_for_a_model_that_loads() -> None:
    async with routed(Script(load_s=0.3, tokens=2), is_ready=False) as bench:
        await bench.state(types_pb2.MODEL_STATE_LOADING)
        answers = await asyncio.gather(*[collect(bench.stub.Generate(ask())) for _ in range(4)])
        assert all(text_of(answer) == "0 1 " for answer in answers)


async def test_waiting_for_a_model_that_loads_too_long_says_so() -> None:
    async with routed(
        Script(load_s=-1), is_ready=False, classes=Classes(default=DefaultRule(queue_timeout_s=0.1))
    ) as bench:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask()))
        error = RemoteError(caught.value)
        assert error.status_code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.reason == "MODEL_LOADING"
        assert float(error.facts["elapsed_s"]) >= 0.1


async def test_a_model_that_is_to_be_started_again_is_shown_as_starting() -> None:
    async with routed() as bench:
        await bench.node.kill("fake")
        await bench.state(types_pb2.MODEL_STATE_STARTING)
        request = router_pb2.GetModelRequest(model="fake")
        model = (await bench.stub.GetModel(request)).model
        assert (model.state, model.reason) == (types_pb2.MODEL_STATE_STARTING, "")


async def test_a_model_that_keeps_crashing_refuses_those_who_wait_and_those_who_come() -> None:
    async with routed(Script(load_s=-1), is_ready=False) as bench:
        await bench.state(types_pb2.MODEL_STATE_LOADING)
        waiting = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await until(lambda: gate_counts(bench) == (0, 1))
        process = bench.node.processes["fake"]
        bench.node.tell(
            node_pb2.Process(
                role="worker",
                name="fake",
                state=node_pb2.PROCESS_STATE_BACKOFF,
                epoch=process.epoch,
                last_exit="exit code 3: no such folder",
                restarts=3,
            )
        )
        for call in (waiting, collect(bench.stub.Generate(ask()))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = RemoteError(caught.value)
            assert error.status_code is grpc.StatusCode.UNAVAILABLE
            assert error.reason == "NO_READY_WORKER"
            assert "no such folder" in error.message
            assert error.retry_after_s
        model = await bench.stub.GetModel(router_pb2.GetModelRequest(model="fake"))
        assert model.model.state == types_pb2.MODEL_STATE_FAILED
        assert "no such folder" in model.model.reason
