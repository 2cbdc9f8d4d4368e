"""Several workers of one model: who gets what, and what happens when one of them fails."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from bramley.common.errors import SlowReader
from bramley.common.ids import ModelName, WorkerName
from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, types_pb2
from bramley.router.booking import Ledger
from bramley.router.breaker import FAILURES_MAX
from bramley.router.clients import ClientLimits
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

TWO: dict[str, Any] = {"replicas": {"fake": 2}}
STALLED = {"fake.stall": "started"}
BULK, INTERACTIVE = types_pb2.PRIORITY_CLASS_BULK, types_pb2.PRIORITY_CLASS_INTERACTIVE


def booked(bench: Bench) -> Ledger:
    return bench.router.models.gates[ModelName("fake")].replicas.booked()


def generated(bench: Bench) -> dict[str, int]:
    return {name: len(worker.generated) for name, worker in bench.node.workers.items()}


async def error_of(call: Any) -> RemoteError:
    _, raised = await collect_until_error(call)
    return RemoteError(raised)


async def test_requests_are_spread_over_the_workers_and_counted_until_they_end() -> None:
    async with routed(Script(max_rows=2), **TWO) as bench:
        await bench.all_ready(2)
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(4)]
        for call in calls:
            await read_until(call, "started")
        assert generated(bench) == {"fake": 2, "fake@2": 2}
        assert booked(bench).requests == 4
        assert booked(bench).prefill_tokens == 4 * len("hello")
        for call in calls:
            call.cancel()
        await until(lambda: booked(bench) == Ledger())


async def test_a_request_whose_worker_dies_before_a_token_goes_to_the_other() -> None:
    async with routed(Script(tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        call = bench.stub.Generate(ask(labels={"fake.stall": "started", "fake.tokens": "2"}))
        first = (await read_until(call, "started")).started.worker.rpartition("-")[0]
        other = "fake@2" if first == "fake" else "fake"
        bench.node.workers[other].ignores_scripts = True
        await bench.node.kill(first)
        responses = await collect(call)
        assert kinds_of(responses) == ["delta", "finished"]
        assert text_of(responses) == "0 1 "
        assert generated(bench) == {other: 1}
        await until(lambda: booked(bench) == Ledger())


async def test_a_request_that_kills_two_workers_is_given_to_no_third() -> None:
    async with routed(Script(tokens=2), replicas={"fake": 3}) as bench:
        await bench.all_ready(3)
        poison = ask(labels={"fake.die": "started"})
        error = await error_of(bench.stub.Generate(poison))
        assert (error.status_code, error.reason) == (grpc.StatusCode.INTERNAL, "POISON_REQUEST")
        assert len(bench.node.workers) == 1
        poison.request_id = "another"
        error = await error_of(bench.stub.Generate(poison))
        assert error.reason == "POISON_REQUEST"
        assert len(bench.node.workers) == 1
        assert text_of(await collect(bench.stub.Generate(ask()))) == "0 1 "


async def test_an_innocent_request_beside_a_killer_is_answered() -> None:
    async with routed(Script(tokens=2), replicas={"fake": 3}) as bench:
        await bench.all_ready(3)
        killer = asyncio.create_task(
            error_of(bench.stub.Generate(ask(labels={"fake.die": "started"})))
        )
        innocents = [
            collect(bench.stub.Generate(ask(text=f"hello {n}", labels={"fake.prefill_s": "0.3"})))
            for n in range(6)
        ]
        for answer in await asyncio.gather(*innocents):
            assert text_of(answer) == "0 1 "
        assert (await killer).reason == "POISON_REQUEST"


async def test_a_request_whose_worker_does_not_prepare_it_goes_to_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bramley.router.relay.SHORT_CALL_S", 0.2)
    async with routed(Script(tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        bench.node.workers["fake@2"].ignores_scripts = True
        call = bench.stub.Generate(ask(labels={"fake.stall": "prepare"}))
        assert text_of(await collect(call)) == "0 1 "
        prepared = [len(worker.prepared) for worker in bench.node.workers.values()]
        assert prepared == [1, 1]


async def test_a_worker_without_memory_for_a_request_is_not_asked_twice() -> None:
    async with routed(Script(tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        error = await error_of(bench.stub.Generate(ask(labels={"fake.oom": "started"})))
        assert error.reason == "DEVICE_OOM"
        assert generated(bench) == {"fake": 1, "fake@2": 1}


async def test_a_draining_worker_s_requests_go_to_the_other() -> None:
    async with routed(Script(tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        bench.node.workers["fake"].state = types_pb2.MODEL_STATE_DRAINING  # not reported yet
        for _ in range(3):
            responses = await collect(bench.stub.Generate(ask()))
            assert text_of(responses) == "0 1 "
            assert responses[1].started.worker.startswith("fake@2")


async def test_an_urgent_request_takes_the_place_of_a_bulk_one_that_goes_on_later() -> None:
    async with routed(Script(max_rows=1, tokens=2)) as bench:
        bulk = bench.stub.Generate(ask(priority=BULK, labels={"fake.prefill_s": "0.5"}))
        await read_until(bulk, "started")
        urgent = await collect(bench.stub.Generate(ask(priority=INTERACTIVE)))
        assert text_of(urgent) == "0 1 "
        assert len(bench.node.workers["fake"].cancelled) == 1
        responses = await collect(bulk)
        assert text_of(responses) == "0 1 "
        assert kinds_of(responses) == ["delta", "finished"]  # Started was told once
        assert bench.node.workers["fake"].running_most == 1


async def test_a_bulk_request_with_a_token_keeps_its_place() -> None:
    async with routed(Script(max_rows=1)) as bench:
        labels = {"fake.tokens": "30", "fake.interval_s": "0.01"}
        bulk = bench.stub.Generate(ask(priority=BULK, labels=labels))
        await read_until(bulk, "delta")
        urgent = asyncio.create_task(
            collect(bench.stub.Generate(ask(priority=INTERACTIVE, labels={"fake.tokens": "1"})))
        )
        await collect(bulk)
        assert text_of(await urgent) == "0 "
        assert bench.node.workers["fake"].cancelled == []


async def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once() -> None:
    async with routed(Script(max_rows=1, tokens=30, interval_s=0.02)) as bench:
        await collect(bench.stub.Generate(ask()))  # 0.6 s: what a request is known to take
        running = bench.stub.Generate(ask())
        await read_until(running, "delta")
        waiting = [bench.stub.Generate(ask()) for _ in range(3)]
        for call in waiting:
            await read_until(call, "accepted")
        error = await error_of(bench.stub.Generate(ask(priority=BULK), timeout=1.0))
        assert error.reason == "DEADLINE_UNMEETABLE"
        assert error.retry_after_s
        for call in (running, *waiting):
            call.cancel()


async def test_a_client_s_limits_refuse_it_alone() -> None:
    async with routed(Script(tokens=2), clients=ClientLimits(requests_max=1)) as bench:
        running = bench.stub.Generate(ask(fairness_key="a", labels=STALLED))
        await read_until(running, "started")
        error = await error_of(bench.stub.Generate(ask(fairness_key="a")))
        assert error.reason == "CLIENT_CONCURRENCY"
        assert error.facts == {"client": "a", "limit": "1"}
        assert error.retry_after_s == 1.0
        assert text_of(await collect(bench.stub.Generate(ask(fairness_key="b")))) == "0 1 "
        running.cancel()
        await until(lambda: booked(bench) == Ledger())
        assert text_of(await collect(bench.stub.Generate(ask(fairness_key="a")))) == "0 1 "


class _Unread:
    """A call's context where nothing is asked of the wire: its reader is the test."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> None:
        return None


async def test_an_answer_that_nobody_reads_is_cut_off_and_frees_its_row() -> None:
    script = Script(tokens=4000, context_tokens=1 << 20)
    async with routed(script, backlog_bytes=10_000) as bench:
        context: Any = _Unread()
        stream: Any = bench.router.server.Generate(ask(), context)
        async with aclosing(stream) as responses:
            await anext(responses)
            worker = bench.node.workers["fake"]
            await until(lambda: len(worker.cancelled) == 1)
            assert booked(bench) == Ledger()
            with pytest.raises(SlowReader, match="bytes of the answer wait to be read"):
                async for _ in responses:
                    pass


async def test_a_prompt_that_is_in_a_row_needs_little_time_before_its_deadline() -> None:
    script = Script(tokens=2, row_chains=["one"], prefill_rate=50.0)  # 300 tokens take 6 s
    async with routed(script) as bench:
        prompt: dict[str, Any] = {"text": "x" * 300}
        error = await error_of(bench.stub.Generate(ask(**prompt), timeout=3.0))
        assert error.reason == "DEADLINE_UNMEETABLE"
        call = bench.stub.Generate(ask(**prompt, labels={"blocks": "one"}), timeout=3.0)
        assert text_of(await collect(call)) == "0 1 "


async def test_who_waits_for_the_only_worker_that_works_goes_to_the_other_once_it_may() -> None:
    async with routed(Script(max_rows=1, tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        running = bench.stub.Generate(ask(labels=STALLED))
        await read_until(running, "started")
        replicas = bench.router.models.gates[ModelName("fake")].replicas
        for _ in range(FAILURES_MAX):
            failing = replicas.choose(1, time.monotonic())
            assert failing is not None
            with replicas.book(failing.replica, 1, 1, time.monotonic()) as seat:
                seat.failed(time.monotonic())
        async with asyncio.timeout(8):
            assert text_of(await collect(bench.stub.Generate(ask()))) == "0 1 "
        running.cancel()


async def test_a_model_holds_what_its_workers_hold_together() -> None:
    async with routed(Script(memory_bytes=5), **TWO) as bench:
        await bench.all_ready(2)
        model = (await bench.stub.GetModel(router_pb2.GetModelRequest(model="fake"))).model
        assert model.memory_bytes == 10


@pytest.mark.parametrize("name", ["fake", "fake@2"])
async def test_either_worker_s_death_leaves_the_model_ready(name: str) -> None:
    async with routed(Script(tokens=2), **TWO) as bench:
        await bench.all_ready(2)
        await bench.node.kill(name)
        await bench.all_ready(1)
        gate = bench.router.models.gates[ModelName("fake")]
        assert gate.view.is_ready
        assert gate.view.worker != WorkerName(name)
        assert text_of(await collect(bench.stub.Generate(ask()))) == "0 1 "
