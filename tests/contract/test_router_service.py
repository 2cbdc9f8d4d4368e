"""The router's other promises: models, health, reflection, status, drain, limits, metrics."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from bramley.common.rpc import CHANNEL_OPTIONS, open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, router_pb2_grpc, types_pb2
from bramley.router.process import Router
from bramley.router.settings import RouterSettings
from support.routing import Bench, ask, collect, kinds_of, read_until, routed, text_of, until
from support.script import Script

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STALLED = {"fake.stall": "started"}


async def scrape(bench: Bench) -> dict[str, float]:
    host, _, port = bench.router.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    lines = (await reader.read()).decode().partition("\r\n\r\n")[2].splitlines()
    writer.close()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def test_models_are_listed_with_what_their_workers_say() -> None:
    async with routed(models=("one", "two")) as bench:
        answer = await bench.stub.ListModels(router_pb2.ListModelsRequest())
        assert [model.name for model in answer.models] == ["one", "two"]
        one = await bench.stub.GetModel(router_pb2.GetModelRequest(model="one"))
        for model in (one.model, answer.models[0]):
            model.ClearField("idle")  # goes on between the two
        assert one.model == answer.models[0]
        assert one.model.state == types_pb2.MODEL_STATE_READY
        assert one.model.limits.max_rows == 8
        assert one.model.revision == "fake"


async def test_a_loading_model_shows_its_progress() -> None:
    async with routed(Script(load_s=0.3), is_ready=False) as bench:
        seen = set[float]()
        await bench.state(types_pb2.MODEL_STATE_LOADING)
        while True:
            answer = await bench.stub.GetModel(router_pb2.GetModelRequest(model="fake"))
            if answer.model.state == types_pb2.MODEL_STATE_READY:
                break
            seen.add(answer.model.load_progress)
        assert len(seen) > 2


async def test_tokens_go_to_text_and_back() -> None:
    async with routed() as bench:
        request = router_pb2.TokenizeRequest(model="fake", text="héllo")
        ids = (await bench.stub.Tokenize(request)).token_ids
        assert list(ids) == list("héllo".encode())
        answer = await bench.stub.Detokenize(
            router_pb2.DetokenizeRequest(model="fake", token_ids=ids)
        )
        assert answer.text == "héllo"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.Detokenize(
                router_pb2.DetokenizeRequest(model="fake", token_ids=[1 << 20])
            )
        assert RemoteError(caught.value).field == "token_ids"


async def test_tokenizing_needs_a_ready_model() -> None:
    async with routed(Script(load_s=-1), is_ready=False) as bench:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.Tokenize(router_pb2.TokenizeRequest(model="fake", text="x"))
        assert RemoteError(caught.value).reason == "NO_READY_WORKER"


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("LoadAdapter", router_pb2.LoadAdapterRequest()),
        ("UnloadAdapter", router_pb2.UnloadAdapterRequest()),
    ],
)
async def test_an_absent_rpc_is_unimplemented_and_says_so(name: str, request_: object) -> None:
    async with routed(models=()) as bench:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(bench.stub, name)(request_)
        error = RemoteError(caught.value)
        assert (error.status_code, error.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")


async def test_health_of_a_model_follows_its_worker() -> None:
    async with routed(Script(load_s=0.1), is_ready=False) as bench:
        health: Any = health_pb2_grpc.HealthStub(bench.channel)
        for service in ("", "bramley.protos.v1.RouterService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == SERVING
        watching = health.Watch(health_pb2.HealthCheckRequest(service="model/fake"))
        assert (await watching.read()).status == NOT_SERVING
        assert (await watching.read()).status == SERVING
        await bench.node.kill("fake")
        assert (await watching.read()).status == NOT_SERVING
        watching.cancel()


async def test_health_tells_that_the_router_drains() -> None:
    async with routed() as bench:
        health: Any = health_pb2_grpc.HealthStub(bench.channel)
        running = bench.stub.Generate(ask(request_id="mine", labels=STALLED))
        await read_until(running, "started")
        draining = asyncio.create_task(bench.stub.Drain(router_pb2.DrainRequest()).__await__())
        for service in ("", "bramley.protos.v1.RouterService", "model/fake"):
            watching = health.Watch(health_pb2.HealthCheckRequest(service=service))
            while (await watching.read()).status != NOT_SERVING:
                pass
            watching.cancel()
        assert not draining.done()
        running.cancel()
        await draining


async def test_status_counts_what_runs_and_waits() -> None:
    async with routed(Script(max_rows=1)) as bench:
        calls = [bench.stub.Generate(ask(labels=STALLED)) for _ in range(3)]
        gate = next(iter(bench.router.models.gates.values()))
        await until(lambda: (gate.running_count, gate.waiting_count) == (1, 2))
        status = await bench.stub.GetStatus(router_pb2.GetStatusRequest())
        assert (status.requests_running, status.requests_waiting) == (1, 2)
        assert (status.epoch, status.draining) == (1, False)
        assert status.uptime.ToNanoseconds() > 0
        for call in calls:
            call.cancel()


async def test_drain_lets_what_is_in_flight_end_and_admits_nothing_more() -> None:
    async with routed(Script(tokens=3, max_rows=1)) as bench:
        running = bench.stub.Generate(ask(request_id="mine", labels=STALLED))
        await read_until(running, "started")
        waiting = bench.stub.Generate(ask())
        await read_until(waiting, "accepted")
        draining = asyncio.create_task(bench.stub.Drain(router_pb2.DrainRequest()).__await__())
        await until(bench.router.server.drain_begun.is_set)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask()))
        assert RemoteError(caught.value).reason == "DRAINING"
        assert not draining.done()
        await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
        assert kinds_of(await collect(running)) == ["finished"]
        assert text_of(await collect(waiting)) == "0 1 2 "
        assert (await draining).requests_finished == 2


async def test_a_client_without_our_code_finds_and_calls_everything() -> None:
    async with routed(Script(tokens=3)) as bench:
        address = bench.router.addresses["grpc"]
        answer = await asyncio.to_thread(drive_by_reflection, address)
        assert answer == (["fake"], "0 1 2 ", SERVING)


def drive_by_reflection(address: str) -> tuple[list[str], str, int]:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        services = set(database.get_services())
        assert {"bramley.protos.v1.RouterService", "grpc.health.v1.Health"} <= services

        def call(of: str, name: str, /, **fields: object) -> Any:
            method = pool.FindServiceByName(of).FindMethodByName(name)
            question = message_factory.GetMessageClass(method.input_type)
            answer = message_factory.GetMessageClass(method.output_type)
            kind = channel.unary_stream if method.server_streaming else channel.unary_unary
            made = kind(
                f"/{of}/{name}",
                request_serializer=question.SerializeToString,
                response_deserializer=answer.FromString,
            )
            return made(question(**fields), timeout=10)

        router = "bramley.protos.v1.RouterService"
        models = [model.name for model in call(router, "ListModels").models]
        stream = call(router, "Generate", model="fake", text="hi")
        text = "".join(response.delta.text for response in stream)
        status = call("grpc.health.v1.Health", "Check", service="model/fake").status
        return models, text, status


async def test_b066_frequent_pings_during_a_silent_prefill_break_nothing() -> None:
    options = [(key, value) for key, value in CHANNEL_OPTIONS if key != "grpc.keepalive_time_ms"]
    options += [
        ("grpc.keepalive_time_ms", 1_000),  # gRPC pings no oftener than that
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]

    async def one(address: str) -> str:
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            return text_of(await collect(stub.Generate(ask())))

    async with routed(Script(tokens=1, prefill_s=4)) as bench:
        address = bench.router.addresses["grpc"]
        assert await asyncio.gather(*[one(address) for _ in range(3)]) == ["0 "] * 3


async def test_b067_an_oversize_message_is_refused_and_the_next_request_served() -> None:
    options = [(key, value) for key, value in CHANNEL_OPTIONS if "message_length" not in key]
    options += [("grpc.max_send_message_length", -1)]
    async with routed(Script(tokens=1, context_tokens=1 << 30)) as bench:
        address = bench.router.addresses["grpc"]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collect(stub.Generate(ask(text="x" * (65 << 20))))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert text_of(await collect(stub.Generate(ask(text="x" * (5 << 20))))) == "0 "
        await bench.ready()


async def test_b068_a_second_router_on_one_port_is_refused(tmp_path: Path) -> None:
    async with routed(models=()) as bench:
        settings = RouterSettings(grpc=bench.router.addresses["grpc"], http="")
        second = Router(settings, f"unix:{tmp_path}/second.sock", epoch=2)
        with pytest.raises(OSError, match="cannot listen"):
            async with second.serve():
                pass
        await bench.stub.GetStatus(router_pb2.GetStatusRequest())


async def test_the_router_answers_on_its_own_socket_too() -> None:
    async with routed() as bench, open_channel(bench.router.addresses["socket"]) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        assert text_of(await collect(stub.Generate(ask(stop={"max_tokens": 1})))) == "0 "


async def test_metrics_count_ends_and_return_to_zero() -> None:
    async with routed(Script(tokens=4), http="127.0.0.1:0") as bench:
        await collect(bench.stub.Generate(ask()))
        for fields in ({"model": "secret"}, {"labels": {"fake.oom": "started"}}):
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(bench.stub.Generate(ask(**fields)))
        left = bench.stub.Generate(ask(request_id="mine", labels=STALLED))
        await read_until(left, "started")
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(bench.stub.Generate(ask(request_id="mine")))
        assert (await scrape(bench))['bramley_router_requests_in_flight{model="fake"}'] == 1
        left.cancel()
        await until(lambda: len(bench.router.server.registry) == 0)
        seen = await scrape(bench)
        model = 'model="fake"'
        total = "bramley_router_requests_total"
        assert seen[f'{total}{{code="OK",finish="length",{model}}}'] == 1
        assert seen[f'{total}{{code="RESOURCE_EXHAUSTED",finish="none",{model}}}'] == 1
        assert seen[f'{total}{{code="CANCELLED",finish="none",{model}}}'] == 1
        assert seen[f'{total}{{code="ALREADY_EXISTS",finish="none",{model}}}'] == 1
        assert seen[f'{total}{{code="NOT_FOUND",finish="none",model=""}}'] == 1
        assert not any("secret" in name for name in seen)
        assert seen[f'bramley_router_cancellations_total{{{model},source="client"}}'] == 1
        assert seen[f"bramley_router_generated_tokens_total{{{model}}}"] == 4
        assert seen[f"bramley_router_prompt_tokens_total{{{model}}}"] == 15
        assert seen[f"bramley_router_request_duration_seconds_count{{{model}}}"] == 3
        assert seen[f"bramley_router_time_to_first_token_seconds_count{{{model}}}"] == 1
        assert seen[f'bramley_router_model_state{{{model},state="READY"}}'] == 1
        assert seen[f"bramley_router_requests_in_flight{{{model}}}"] == 0
        assert seen[f'bramley_router_queue_depth{{class="default",{model}}}'] == 0
        assert seen[f'bramley_router_refusals_total{{{model},reason="already_exists"}}'] == 1
        assert seen[f'bramley_router_routing_decisions_total{{{model},why="only"}}'] == 3
        for what in ("requests", "prefill_tokens", "memory_bytes"):
            assert seen[f"bramley_router_booked_{what}{{{model}}}"] == 0
