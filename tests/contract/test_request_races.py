"""Things that happen to a request at the same moment: it still ends once, with each token once."""

import asyncio
import random
from collections import deque
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from bramley.common.ids import ModelName
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2, worker_pb2
from bramley.router.booking import Ledger
from bramley.router.fleet import WorkerView
from bramley.router.gate import Gate
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

BULK, INTERACTIVE = types_pb2.PRIORITY_CLASS_BULK, types_pb2.PRIORITY_CLASS_INTERACTIVE
STALLED = {"fake.stall": "started"}


def gate_of(bench: Bench) -> Gate:
    return bench.router.models.gates[ModelName("fake")]


class Unbound:
    """A call's context without a deadline."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> None:
        return None


def generate(bench: Bench, **fields: Any) -> Any:
    """Call the handler itself, so that nothing happens between its steps."""
    context: Any = Unbound()
    return bench.router.server.Generate(ask(**fields), context)


class HeldCall:
    """A worker's stream as gRPC has it: what had arrived when it was cancelled is still read."""

    def __init__(self) -> None:
        self._arrived: deque[worker_pb2.WorkerServiceGenerateResponse | None] = deque()
        self._news = asyncio.Event()

    def arrive(self, **event: Any) -> None:
        self._arrived.append(worker_pb2.WorkerServiceGenerateResponse(**event))
        self._news.set()

    def cancel(self) -> None:
        self._arrived.append(None)
        self._news.set()

    def __aiter__(self) -> "HeldCall":
        return self

    async def __anext__(self) -> worker_pb2.WorkerServiceGenerateResponse:
        while not self._arrived:
            self._news.clear()
            await self._news.wait()
        if (event := self._arrived.popleft()) is None:
            raise asyncio.CancelledError
        return event


class HeldWorker:
    """A worker whose first stream the test holds."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.calls: list[HeldCall] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def Generate(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802  as gRPC names it
        if self.calls:
            return self._real.Generate(*args, **kwargs)
        self.calls.append(HeldCall())
        return self.calls[0]


def hold(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> HeldWorker:
    """Have the test be the worker of the next stream."""
    watch = bench.router.watch
    held = HeldWorker(watch.stub(gate_of(bench).view))

    def stub(_: WorkerView) -> HeldWorker:
        return held

    monkeypatch.setattr(watch, "stub", stub)
    return held


async def test_a_first_token_that_arrives_as_the_place_is_taken_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with routed(Script(max_rows=1, tokens=3)) as bench:
        held = hold(bench, monkeypatch)
        bulk = bench.stub.Generate(ask(priority=BULK))
        await until(lambda: bool(held.calls))
        (place,) = gate_of(bench)._places.values()  # pyright: ignore[reportPrivateUsage]
        preempt = place.preempt

        def token_arrives_and_is_preempted() -> None:
            held.calls[0].arrive(delta=generation_pb2.Delta(token_ids=[0], text="0 "))
            preempt()

        monkeypatch.setattr(place, "preempt", token_arrives_and_is_preempted)
        urgent = await collect(bench.stub.Generate(ask(priority=INTERACTIVE)))
        assert text_of(urgent) == "0 1 2 "
        responses = await collect(bulk)
        assert text_of(responses) == "0 1 2 "
        assert responses[-1].finished.usage.completion_tokens == 3


async def test_an_abort_before_the_first_step_ends_the_stream() -> None:
    async with routed() as bench:
        stream = generate(bench, request_id="mine")
        aborting = router_pb2.AbortRequest(request_ids=["mine"])
        context: Any = Unbound()
        async with aclosing(stream) as responses, asyncio.timeout(5):
            first = asyncio.create_task(anext(responses))
            aborted = asyncio.create_task(bench.router.server.Abort(aborting, context))
            assert (await aborted).results["mine"] == router_pb2.AbortResponse.RESULT_ABORTED
            seen = [await first, *[response async for response in responses]]
        assert kinds_of(seen) == ["accepted", "finished"]
        assert seen[-1].finished.reason == types_pb2.FINISH_REASON_ABORTED


async def test_an_answer_of_several_of_which_one_ended_empty_is_not_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with routed(Script(tokens=3)) as bench:
        held = hold(bench, monkeypatch)
        call = bench.stub.Generate(ask(n=2))
        await until(lambda: bool(held.calls))
        (worker,) = held.calls
        empty = generation_pb2.Finished(index=0, reason=types_pb2.FINISH_REASON_STOP)
        worker.arrive(finished=empty)
        await read_until(call, "finished")
        worker.cancel()  # as a channel that is closed does
        seen, raised = await collect_until_error(call)
        assert (seen, RemoteError(raised).reason) == ([], "WORKER_LOST")


async def test_a_stream_whose_channel_is_closed_before_a_token_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with routed(Script(tokens=3)) as bench:
        held = hold(bench, monkeypatch)
        call = bench.stub.Generate(ask())
        await until(lambda: bool(held.calls))
        held.calls[0].cancel()
        assert text_of(await collect(call)) == "0 1 2 "


async def test_suspects_that_wait_for_one_another_hold_no_place() -> None:
    """The one whose turn it is has a worse place in the line than the one that waits for it."""
    async with routed(Script(max_rows=1, tokens=2), replicas={"fake": 2}) as bench:
        await bench.all_ready(2)
        first = bench.stub.Generate(ask(text="first", labels=STALLED))
        await read_until(first, "started")
        second = bench.stub.Generate(ask(text="second", labels=STALLED), timeout=60.0)
        await read_until(second, "started")
        for name in ("fake", "fake@2"):
            await bench.node.kill(name)
        await until(lambda: gate_of(bench).waiting_count == 2)
        await bench.node.start("fake")
        worker = bench.node.workers["fake"]
        worker.ignores_scripts = True
        async with asyncio.timeout(5):
            answers = await asyncio.gather(collect(first), collect(second))
        assert [text_of(answer) for answer in answers] == ["0 1 ", "0 1 "]
        assert worker.running_most == 1


async def test_a_suspect_that_waits_for_its_turn_leaves_its_place_to_others() -> None:
    async with routed(Script(max_rows=2, tokens=2)) as bench:
        suspects = [bench.stub.Generate(ask(text=text, labels=STALLED)) for text in ("a", "b")]
        for call in suspects:
            await read_until(call, "started")
        await bench.node.kill("fake")
        await bench.node.start("fake")
        await bench.ready()
        await until(lambda: gate_of(bench).running_count == 1)
        async with asyncio.timeout(5):
            assert text_of(await collect(bench.stub.Generate(ask(text="innocent")))) == "0 1 "
        assert (gate_of(bench).running_count, gate_of(bench).waiting_count) == (1, 1)
        for call in suspects:
            call.cancel()


async def test_one_worker_s_death_under_two_equal_requests_is_one_death() -> None:
    async with routed(Script(max_rows=2, tokens=2)) as bench:
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(2)]
        for call in calls:
            await read_until(call, "started")
        await bench.node.kill("fake")
        await bench.node.start("fake")
        bench.node.workers["fake"].ignores_scripts = True
        answers = await asyncio.gather(*map(collect, calls))
        assert [text_of(answer) for answer in answers] == ["0 1 ", "0 1 "]


async def test_a_suspect_waits_for_its_turn_no_longer_than_it_may() -> None:
    async with routed(Script(max_rows=2, tokens=2)) as bench:
        wait_max = Duration(seconds=1)
        calls = [
            bench.stub.Generate(ask(text=text, labels=STALLED, max_queue_time=wait_max))
            for text in ("a", "b")
        ]
        for call in calls:
            await read_until(call, "started")
        await bench.node.kill("fake")
        await bench.node.start("fake")
        ends = [asyncio.create_task(collect_until_error(call)) for call in calls]
        done, running = await asyncio.wait(ends, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        (end,) = done  # the other one has the turn
        seen, raised = await end
        assert (seen, RemoteError(raised).reason) == ([], "QUEUE_TIMEOUT")
        for task in running:
            task.cancel()
        await asyncio.wait(running)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_in_any_mixture_each_answer_is_whole_and_nothing_is_left(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    script = Script(max_rows=2, tokens=6, prefill_s=0.02, interval_s=0.002)
    answered = 0
    async with routed(script, replicas={"fake": 2}) as bench:
        await bench.all_ready(2)

        async def one(number: int) -> None:
            nonlocal answered
            await asyncio.sleep(rng.random())
            name = str(number % 40)  # some ask the same as others
            call = bench.stub.Generate(
                ask(
                    text=name,
                    priority=rng.choice([BULK, BULK, INTERACTIVE, 0]),
                    request_id=f"q{number}",
                ),
                timeout=rng.choice([None, 0.05, 20.0]),
            )
            end = rng.choice(["abort", "cancel", "", "", ""])
            if end:
                asyncio.get_running_loop().call_later(rng.random() * 0.1, call.cancel)
            if end == "abort":
                await bench.stub.Abort(router_pb2.AbortRequest(request_ids=[f"q{number}"]))
            try:
                responses = await collect(call)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                return
            if responses[-1].finished.reason == types_pb2.FINISH_REASON_LENGTH:
                assert kinds_of(responses) == ["accepted", "started", "delta", "finished"]
                assert text_of(responses) == "0 1 2 3 4 5 "
                numbers = [each.delta.seq_no for each in responses if each.HasField("delta")]
                assert numbers == list(range(len(numbers)))
                answered += 1

        async def kill() -> None:
            for name in ("fake", "fake@2", "fake"):
                await asyncio.sleep(0.3)
                await bench.node.kill(name)
                await bench.node.start(name)

        async with asyncio.timeout(60):
            await asyncio.gather(kill(), *map(one, range(150)))
            gate = gate_of(bench)
            await until(lambda: (gate.running_count, gate.waiting_count) == (0, 0))
            assert gate.replicas.booked() == Ledger()
            assert len(bench.router.server.registry) == 0
            assert answered > 30
            assert text_of(await collect(bench.stub.Generate(ask()))) == "0 1 2 3 4 5 "
