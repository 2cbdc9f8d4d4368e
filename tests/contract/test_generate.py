"""What a Generate stream promises, against the router and fake workers."""

import asyncio
from typing import Any, cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from support.routing import Bench, ask, collect, kinds_of, read_until, routed, text_of, until
from support.script import Script

LONG = {"fake.tokens": "2000", "fake.interval_s": "0.01"}


def numbers(count: int) -> str:
    return "".join(f"{n} " for n in range(count))


async def refused(bench: Bench, request: generation_pb2.GenerateRequest) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(bench.stub.Generate(request))
    return RemoteError(caught.value)


def is_idle(bench: Bench) -> bool:
    gates = bench.router.models.gates.values()
    counts = [gate.running_count + gate.waiting_count for gate in gates]
    return not any(counts) and len(bench.router.server.registry) == 0


async def test_a_stream_is_accepted_started_deltas_finished_ok() -> None:
    async with routed(Script(tokens=50)) as bench:
        responses = await collect(bench.stub.Generate(ask()))
        assert kinds_of(responses) == ["accepted", "started", "delta", "finished"]
        assert text_of(responses) == numbers(50)
        assert responses[0].accepted.request_id
        started, finished = responses[1].started, responses[-1].finished
        assert started.prompt_tokens == len("hello")
        assert started.worker == "fake-1"
        assert finished.usage.completion_tokens == 50
        assert finished.reason == types_pb2.FINISH_REASON_LENGTH
        timings = finished.timings
        spans = [timings.queue, timings.ttft, timings.total]
        assert sorted(spans, key=Duration.ToNanoseconds) == spans
        assert timings.queue.ToNanoseconds() > 0


async def test_nothing_is_lost_doubled_or_reordered_on_64_streams() -> None:
    async with routed(Script(tokens=200, max_rows=64)) as bench:
        calls = [collect(bench.stub.Generate(ask())) for _ in range(64)]
        for responses in await asyncio.gather(*calls):
            deltas = [r.delta for r in responses if r.WhichOneof("event") == "delta"]
            assert [delta.seq_no for delta in deltas] == list(range(len(deltas)))
            assert [token for delta in deltas for token in delta.token_ids] == list(range(200))
            assert text_of(responses) == numbers(200)
            assert deltas[-1].completion_tokens == 200
        await until(lambda: is_idle(bench))


async def test_logprobs_survive_joining() -> None:
    async with routed(Script(tokens=300)) as bench:
        responses = await collect(bench.stub.Generate(ask(logprobs=types_pb2.LogprobOptions())))
        logprobs = [value for r in responses for value in r.delta.logprobs.logprobs]
        assert logprobs == [-float(n) for n in range(300)]


@pytest.mark.parametrize("interval_s", [0.0, 0.005])
async def test_reasoning_content_and_calls_reach_the_client_in_order(interval_s: float) -> None:
    script = Script(tokens=40, interval_s=interval_s, reasons=10, calls=5)
    async with routed(script) as bench:
        responses = await collect(bench.stub.Generate(ask()))
        deltas = [response.delta for response in responses if response.HasField("delta")]
        assert "".join(delta.reasoning_text for delta in deltas) == numbers(10)
        assert text_of(responses) == "".join(f"{n} " for n in range(10, 35))
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [(call.index, call.id, call.ended) for call in calls] == [
            (n, f"c{35 + n}", True) for n in range(5)
        ]
        assert [call.arguments_json for call in calls] == [f'{{"n": {35 + n}}}' for n in range(5)]
        assert deltas[-1].reasoning_tokens == responses[-1].finished.usage.reasoning_tokens == 10
        assert responses[-1].finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS
        labels = {"model": "fake", "code": "OK", "finish": "tool_calls"}
        counted = bench.router.metrics.registry.get_sample_value
        assert counted("bramley_router_requests_total", labels) == 1


async def test_a_message_holds_no_more_tokens_than_asked_for() -> None:
    async with routed(Script(tokens=100)) as bench:
        options = types_pb2.StreamOptions(max_tokens_per_message=3)
        responses = await collect(bench.stub.Generate(ask(stream=options)))
        assert max(len(r.delta.token_ids) for r in responses) <= 3
        assert text_of(responses) == numbers(100)


@pytest.mark.parametrize("interval_s", [0.0, 0.002])
async def test_b056_each_index_has_all_its_tokens_and_ends_once(interval_s: float) -> None:
    async with routed(Script(tokens=50, interval_s=interval_s)) as bench:
        responses = await collect(bench.stub.Generate(ask(n=16)))
        ended = [r.finished.index for r in responses if r.HasField("finished")]
        assert ended == list(range(16))
        deltas = [r.delta for r in responses if r.HasField("delta")]
        assert [delta.seq_no for delta in deltas] == list(range(len(deltas)))
        for index in range(16):
            mine = [delta for delta in deltas if delta.index == index]
            assert "".join(delta.text for delta in mine) == numbers(50)
            assert mine[-1].completion_tokens == 50


async def test_progress_comes_between_started_and_the_first_delta() -> None:
    async with routed(Script(tokens=2, prefill_s=0.02)) as bench:
        options = types_pb2.StreamOptions(progress=True)
        responses = await collect(bench.stub.Generate(ask(stream=options)))
        kinds = kinds_of(responses)
        assert kinds == ["accepted", "started", *["progress"] * 4, "delta", "finished"]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"model": ""}, grpc.StatusCode.INVALID_ARGUMENT, "model"),
        ({"model": "other"}, grpc.StatusCode.NOT_FOUND, None),
        ({"request_id": "x" * 300}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
        (
            {"max_queue_time": Duration(seconds=-1)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "max_queue_time",
        ),
        (
            {"max_queue_time": Duration(seconds=2**63 - 1)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "max_queue_time",
        ),
        (
            {"max_queue_time": Duration(seconds=1, nanos=-1)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "max_queue_time",
        ),
        ({"request_id": "x" * 1_000_000}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"model": "\U0001f600" * 250_000}, grpc.StatusCode.INVALID_ARGUMENT, "model"),
        ({"n": 0}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"n": -1}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"n": 17}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"n": 2**31 - 1}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "text"),
        (
            {"token_ids": types_pb2.TokenIds()},
            grpc.StatusCode.INVALID_ARGUMENT,
            "token_ids",
        ),
        ({"chat": types_pb2.ChatInput()}, grpc.StatusCode.INVALID_ARGUMENT, "chat"),
        (
            {"stop": types_pb2.StopConditions(max_tokens=0)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "stop.max_tokens",
        ),
        (
            {"stop": types_pb2.StopConditions(max_tokens=-1)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "stop.max_tokens",
        ),
        (
            {"labels": {"fake.bad_field": "prepare"}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.top_p",
        ),
        (
            {"labels": {"fake.oom": "started"}},
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            None,
        ),
    ],
)
async def test_a_wrong_request_fails_alone_and_names_its_field(
    fields: dict[str, object], code: grpc.StatusCode, field: str | None
) -> None:
    async with routed(Script(tokens=3)) as bench:
        healthy = asyncio.create_task(
            collect(bench.stub.Generate(ask(labels=LONG | {"fake.tokens": "20"})))
        )
        error = await refused(bench, ask(**fields))
        assert (error.status_code, error.field) == (code, field)
        assert text_of(await healthy) == numbers(20)
        assert text_of(await collect(bench.stub.Generate(ask()))) == numbers(3)


async def test_a_request_that_is_no_message_is_refused_as_such() -> None:
    async with routed(Script(tokens=1)) as bench:
        channel = cast("Any", bench.channel)  # without a serializer
        call = channel.unary_stream("/bramley.protos.v1.RouterService/Generate")(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = RemoteError(caught.value)
        assert (error.status_code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request")
        assert text_of(await collect(bench.stub.Generate(ask()))) == "0 "


async def test_no_input_is_named_as_such() -> None:
    async with routed() as bench:
        error = await refused(bench, generation_pb2.GenerateRequest(model="fake"))
        assert error.field == "input"


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    async with routed(Script(context_tokens=64)) as bench:
        limit = types_pb2.StopConditions(max_tokens=1)
        for length in (62, 63):
            text = text_of(await collect(bench.stub.Generate(ask(text="x" * length, stop=limit))))
            assert text == "0 "
        for length in (64, 65, 500):
            error = await refused(bench, ask(text="x" * length, stop=limit))
            assert error.status_code is grpc.StatusCode.INVALID_ARGUMENT
            assert error.reason == "CONTEXT_LENGTH_EXCEEDED"
            assert (error.facts["prompt"], error.facts["limit"]) == (str(length), "64")


async def test_a_workers_error_keeps_its_details() -> None:
    async with routed() as bench:
        error = await refused(bench, ask(labels={"fake.oom": "started"}))
        assert error.reason == "DEVICE_OOM"
        assert error.facts == {"needed": str(1 << 40)}


async def test_an_id_in_flight_is_not_taken_twice() -> None:
    async with routed() as bench:
        first = bench.stub.Generate(ask(request_id="mine", labels=LONG))
        await read_until(first, "delta")
        error = await refused(bench, ask(request_id="mine"))
        assert error.status_code is grpc.StatusCode.ALREADY_EXISTS
        first.cancel()
        await until(lambda: is_idle(bench))
        responses = await collect(bench.stub.Generate(ask(request_id="mine")))
        assert text_of(responses) == numbers(16)


@pytest.mark.parametrize("kind", ["accepted", "started", "delta"])
async def test_b057_a_client_that_leaves_frees_its_row_at_once(kind: str) -> None:
    async with routed(Script(max_rows=1)) as bench:
        labels = LONG | ({"fake.stall": "started"} if kind == "started" else {})
        labels |= {"fake.stall": "accepted"} if kind == "accepted" else {}
        call = bench.stub.Generate(ask(labels=labels))
        await read_until(call, kind)
        worker = bench.node.workers["fake"]
        await until(lambda: worker.running == 1)
        call.cancel()
        await until(lambda: worker.running == 0 and is_idle(bench))
        assert len(worker.cancelled) == 1
        assert text_of(await collect(bench.stub.Generate(ask()))) == numbers(16)


async def test_a_passed_deadline_frees_the_row() -> None:
    async with routed(Script(max_rows=1)) as bench:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask(labels=LONG), timeout=0.2))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        worker = bench.node.workers["fake"]
        await until(lambda: worker.running == 0 and is_idle(bench))


@pytest.mark.parametrize("which", ["theirs", "ours"])
async def test_abort_ends_a_stream_with_what_it_used_so_far(which: str) -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(request_id="mine", labels=LONG))
        accepted = await read_until(call, "accepted")
        await read_until(call, "delta")
        name = "mine" if which == "theirs" else accepted.accepted.request_id
        answer = await bench.stub.Abort(router_pb2.AbortRequest(request_ids=[name, "nobody"]))
        assert answer.results[name] == router_pb2.AbortResponse.RESULT_ABORTED
        assert answer.results["nobody"] == router_pb2.AbortResponse.RESULT_NOT_FOUND
        rest = await collect(call)
        assert await call.code() is grpc.StatusCode.OK
        finished = rest[-1].finished
        assert finished.reason == types_pb2.FINISH_REASON_ABORTED
        assert finished.usage.prompt_tokens == len("hello")
        assert finished.usage.completion_tokens >= 1
        worker = bench.node.workers["fake"]
        await until(lambda: worker.running == 0 and is_idle(bench))


async def test_abort_ends_every_index_with_what_it_used() -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(request_id="mine", labels=LONG, n=3))
        await read_until(call, "delta")
        await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
        ended = [r.finished for r in await collect(call) if r.HasField("finished")]
        assert [one.index for one in ended] == [0, 1, 2]
        assert {one.reason for one in ended} == {types_pb2.FINISH_REASON_ABORTED}
        assert {one.usage.prompt_tokens for one in ended} == {len("hello")}


async def test_abort_ends_a_request_that_waits() -> None:
    async with routed(Script(max_rows=1)) as bench:
        running = bench.stub.Generate(ask(labels=LONG))
        await read_until(running, "delta")
        waiting = bench.stub.Generate(ask(request_id="mine"))
        await read_until(waiting, "accepted")
        await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
        assert kinds_of(await collect(waiting)) == ["finished"]
        assert len(bench.node.workers["fake"].generated) == 1
        running.cancel()


async def test_a_client_that_leaves_during_prepare_leaves_nothing() -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(labels={"fake.stall": "prepare"}))
        worker = bench.node.workers["fake"]
        await until(lambda: len(worker.prepared) == 1)
        assert not is_idle(bench)
        call.cancel()
        await until(lambda: is_idle(bench))
        assert not worker.generated


async def test_a_client_that_does_not_read_holds_no_row() -> None:
    async with routed(Script(tokens=3000, max_rows=1)) as bench:
        call = bench.stub.Generate(ask())
        await read_until(call, "started")
        worker = bench.node.workers["fake"]
        gate = bench.router.models.gates[worker.model]
        await until(lambda: worker.running == 0 and gate.running_count == 0)
        assert text_of(await collect(call)) == numbers(3000)


async def test_abort_during_prepare_still_answers_in_order() -> None:
    async with routed() as bench:
        call = bench.stub.Generate(ask(request_id="mine", labels={"fake.stall": "prepare"}))
        await until(lambda: len(bench.node.workers["fake"].prepared) == 1)
        await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
        assert kinds_of(await collect(call)) == ["accepted", "finished"]
