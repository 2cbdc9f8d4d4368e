"""A worker's death fails only its own requests, each with one status that says how far it got."""

import asyncio

import grpc
import pytest

from bramley.common.status import RemoteError
from bramley.protos.v1 import node_pb2, types_pb2
from bramley.router.classes import Classes, DefaultRule
from support.fake_worker import DYING_S
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

SLOW = {"fake.tokens": "2000", "fake.interval_s": "0.01"}


def has_died(bench: Bench) -> bool:
    return bench.node.processes["fake"].state == node_pb2.PROCESS_STATE_BACKOFF


async def test_a_stream_whose_worker_dies_after_a_token_ends_with_worker_lost() -> None:
    async with routed(in_processes=True) as bench:
        call = bench.stub.Generate(ask(labels={"fake.die": "delta"}))
        seen, raised = await collect_until_error(call)
        error = RemoteError(raised)
        assert error.status_code is grpc.StatusCode.UNAVAILABLE
        assert error.reason == "WORKER_LOST"
        assert kinds_of(seen) == ["accepted", "started", "delta"]
        tokens = sum(len(response.delta.token_ids) for response in seen)
        assert error.facts == {"model": "fake", "tokens_emitted": str(tokens)}
        assert ("grpc-retry-pushback-ms", "-1") in tuple(raised.trailing_metadata() or ())


@pytest.mark.parametrize("point", ["accepted", "started"])
async def test_a_request_whose_worker_dies_before_a_token_is_answered_by_the_next(
    point: str,
) -> None:
    async with routed(Script(tokens=2, actions={"die": point})) as bench:
        bench.node.scripts["fake"] = Script(tokens=2)
        call = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await until(lambda: has_died(bench))
        await bench.node.start("fake")
        responses = await call
        assert kinds_of(responses) == ["accepted", "started", "delta", "finished"]
        assert text_of(responses) == "0 1 "
        timings = responses[-1].finished.timings
        # What the first worker took until it died is told as time in the queue.
        assert timings.queue.ToTimedelta().total_seconds() >= DYING_S
        assert timings.queue.ToTimedelta() <= timings.ttft.ToTimedelta()


async def test_the_other_models_streams_go_on() -> None:
    async with routed(models=("fake", "other"), in_processes=True) as bench:
        dying = bench.stub.Generate(ask(labels=SLOW))
        living = asyncio.create_task(
            collect(bench.stub.Generate(ask(model="other", labels=SLOW | {"fake.tokens": "60"})))
        )
        await read_until(dying, "delta")
        await bench.node.kill("fake")
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(dying)
        assert text_of(await living) == "".join(f"{n} " for n in range(60))


async def test_requests_that_wait_outlive_the_worker() -> None:
    async with routed(Script(max_rows=1, tokens=2), in_processes=True) as bench:
        running = bench.stub.Generate(ask(labels=SLOW))
        await read_until(running, "delta")
        waiting = bench.stub.Generate(ask())
        await read_until(waiting, "accepted")
        await bench.node.kill("fake")
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(running)
        late = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await bench.node.start("fake")
        assert text_of(await collect(waiting)) == "0 1 "
        responses = await late
        assert text_of(responses) == "0 1 "
        assert responses[1].started.worker == "fake-2"


async def test_a_request_whose_worker_dies_at_prepare_waits_for_the_next_one() -> None:
    async with routed(Script(tokens=2, actions={"die": "prepare"})) as bench:
        bench.node.scripts["fake"] = Script(tokens=2)
        call = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await until(lambda: has_died(bench))
        await bench.node.start("fake")
        responses = await call
        assert kinds_of(responses) == ["accepted", "started", "delta", "finished"]
        assert responses[1].started.worker == "fake-2"


async def test_a_request_whose_prepare_kills_two_workers_gets_no_third() -> None:
    async with routed(Script(actions={"die": "prepare"})) as bench:
        call = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await until(lambda: has_died(bench))
        await bench.node.start("fake")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert RemoteError(caught.value).reason == "WORKER_LOST"


async def test_a_draining_worker_is_passed_over_for_its_next_incarnation() -> None:
    async with routed(Script(tokens=2)) as bench:
        worker = bench.node.workers["fake"]
        worker.state = types_pb2.MODEL_STATE_DRAINING  # it has not reported that yet
        call = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await until(lambda: bench.router.models.gates[worker.model].waiting_count == 1)
        await bench.node.kill("fake")
        await bench.node.start("fake")
        assert text_of(await call) == "0 1 "


async def test_a_draining_worker_that_serves_again_is_taken_again() -> None:
    async with routed(Script(tokens=2)) as bench:
        worker = bench.node.workers["fake"]
        worker.state = types_pb2.MODEL_STATE_DRAINING  # it has not reported that yet
        call = asyncio.create_task(collect(bench.stub.Generate(ask())))
        await bench.state(types_pb2.MODEL_STATE_DRAINING)
        worker.set_state(types_pb2.MODEL_STATE_READY)
        responses = await call
        assert responses[1].started.worker == "fake-1"


async def test_a_prepare_that_failed_on_a_worker_that_lives_is_tried_there_again() -> None:
    async with routed(
        Script(tokens=2), classes=Classes(default=DefaultRule(queue_timeout_s=5.0))
    ) as bench:
        bench.node.workers["fake"].hang_ups = 1
        responses = await collect(bench.stub.Generate(ask()))
        assert text_of(responses) == "0 1 "
        assert responses[1].started.worker == "fake-1"


async def test_a_worker_believed_lost_is_ready_only_by_a_stream_of_reports_begun_since() -> None:
    async with routed(Script(heartbeat_s=0.01)) as bench:
        worker = bench.node.workers["fake"]
        gate = bench.router.models.gates[worker.model]
        watches = worker.watches
        bench.router.watch.lost(gate.view)
        bench.router.watch.lost(gate.view)  # one is enough
        assert not gate.view.is_ready
        await bench.ready()
        assert worker.watches == watches + 1


async def test_a_supervisors_restart_breaks_no_stream_and_is_caught_up_with() -> None:
    async with routed(Script(tokens=2)) as bench:
        running = bench.stub.Generate(ask(labels=SLOW))
        await read_until(running, "delta")
        await bench.node.leave()
        assert text_of(await collect(bench.stub.Generate(ask()))) == "0 1 "
        bench.node.started.clear()
        await bench.node.serve()
        await until(lambda: bench.node.started == ["fake"])
        await read_until(running, "delta")
        await bench.node.kill("fake")
        await bench.node.start("fake")
        await bench.ready()
        responses = await collect(bench.stub.Generate(ask()))
        assert responses[1].started.worker == "fake-2"
        running.cancel()


async def test_a_silent_worker_is_given_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bramley.router.watch.REPORT_WAIT_S", 0.2)
    async with routed(Script(heartbeat_s=0.05)) as bench:
        bench.node.workers["fake"].mute()
        gate = bench.router.models.gates[bench.node.workers["fake"].model]
        await until(lambda: not gate.view.is_ready)
        bench.node.workers["fake"].unmute()
        await bench.ready()


async def test_a_worker_that_does_not_answer_is_no_ready_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bramley.router.relay.SHORT_CALL_S", 0.1)
    async with routed() as bench:
        seen, raised = await collect_until_error(
            bench.stub.Generate(ask(labels={"fake.stall": "prepare"}))
        )
        error = RemoteError(raised)
        assert (seen, error.reason) == ([], "NO_READY_WORKER")
        assert error.status_code is grpc.StatusCode.UNAVAILABLE


async def test_a_stopped_worker_fails_its_streams_once_it_is_killed() -> None:
    async with routed(in_processes=True) as bench:
        call = bench.stub.Generate(ask(labels={"fake.sigstop": "delta"}))
        await read_until(call, "delta")
        await bench.node.kill("fake")
        _, raised = await collect_until_error(call)
        assert RemoteError(raised).reason == "WORKER_LOST"
