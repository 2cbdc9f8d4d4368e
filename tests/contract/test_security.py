"""Who gets in: tokens on TCP, the socket's mode on the socket, and what each may see and end."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bramley.common.auth import metadata_of, new_token
from bramley.common.ids import ModelName
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, router_pb2_grpc, types_pb2
from bramley.router.access import ADMINS
from support.certificates import Authority
from support.routing import (
    Bench,
    ask,
    collect,
    collect_until_error,
    read_until,
    routed,
    text_of,
    until,
)
from support.script import Script
from support.tokens import Metadata, Tokens

STALLED = {"fake.stall": "started"}
SERVICE = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
METHODS = {method.name: method for method in SERVICE.methods}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


async def call(bench: Bench, name: str, metadata: Metadata | None = None, **fields: Any) -> Any:
    """Call any RPC, and read its stream if it is one."""
    request = getattr(router_pb2, f"{name}Request", None)
    made = ask(**fields) if request is None else request(**fields)
    method: Any = getattr(bench.stub, name)
    if METHODS[name].server_streaming:
        return await collect(method(made, metadata=metadata))
    return await method(made, metadata=metadata)


async def refusal(bench: Bench, name: str, metadata: Metadata | None = None, **fields: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(bench, name, metadata, **fields)
    return RemoteError(caught.value)


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_no_call_over_tcp_does_without_a_good_token(name: str, tokens: Tokens) -> None:
    tokens.add("alice")
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        wrong = new_token()
        for metadata in (None, metadata_of(wrong), (("authorization", "Basic x"),)):
            error = await refusal(bench, name, metadata)
            assert error.status_code is grpc.StatusCode.UNAUTHENTICATED
            assert error.reason == "UNAUTHENTICATED"
            assert wrong not in error.message


async def test_reflection_needs_a_token_and_health_needs_none(tokens: Tokens) -> None:
    good = tokens.add("alice")
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        health: Any = health_pb2_grpc.HealthStub(bench.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        channel: Any = bench.channel
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [one async for one in reflection.ServerReflectionInfo(iter([question]))]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        answers = reflection.ServerReflectionInfo(iter([question]), metadata=good)
        listed = [one async for one in answers]
        assert listed[0].list_services_response.service


async def test_the_socket_asks_for_no_token(tokens: Tokens) -> None:
    tokens.add("alice")
    async with (
        routed(Script(tokens=2), auth=tokens.settings) as bench,
        open_channel(bench.router.addresses["socket"]) as channel,
    ):
        stub = router_pb2_grpc.RouterServiceStub(channel)
        assert text_of(await collect(stub.Generate(ask()))) == "0 1 "
        assert await stub.Drain(router_pb2.DrainRequest())


async def test_nothing_of_a_message_is_read_for_who_has_no_token(tokens: Tokens) -> None:
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        channel: Any = bench.channel
        garbage = channel.unary_unary(f"/{SERVICE.full_name}/GetModel")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await garbage(b"\xff" * 1000)  # no message: were it read, it would be said
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", sorted(ADMINS))
async def test_what_changes_the_cluster_takes_an_admins_token(name: str, tokens: Tokens) -> None:
    alice, root = tokens.add("alice"), tokens.add("root", "admin = true")
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        error = await refusal(bench, name, alice)
        assert error.status_code is grpc.StatusCode.PERMISSION_DENIED
        assert error.facts == {"token": "alice", "call": name}
        if name == "Drain":
            await call(bench, name, root)
        else:  # it gets as far as it goes without a model
            passed = await refusal(bench, name, root)
            assert passed.status_code is not grpc.StatusCode.PERMISSION_DENIED


async def test_a_token_opens_the_models_it_names_and_tells_of_no_others(tokens: Tokens) -> None:
    one = tokens.add("one", 'models = ["one"]')
    async with routed(Script(tokens=2), models=("one", "two"), auth=tokens.settings) as bench:
        assert text_of(await call(bench, "Generate", one, model="one")) == "0 1 "
        listed = await call(bench, "ListModels", one)
        assert [model.name for model in listed.models] == ["one"]
        running = bench.stub.Generate(ask(model="two", labels=STALLED), metadata=tokens.add("any"))
        await read_until(running, "started")
        status = await call(bench, "GetStatus", one)
        assert [model.name for model in status.models] == ["one"]
        assert (status.requests_running, status.HasField("memory")) == (0, False)
        running.cancel()
        for model in ("two", "three"):  # there or not: the answer is the same
            for name in ("Generate", "GetModel", "Tokenize", "Detokenize", "ExplainCache"):
                error = await refusal(bench, name, one, model=model)
                assert error.status_code is grpc.StatusCode.PERMISSION_DENIED
                assert error.facts == {"token": "one", "model": model}


async def test_a_token_opens_the_classes_it_names(tokens: Tokens) -> None:
    bulk = tokens.add("bulk", 'classes = ["bulk"]')
    async with routed(Script(tokens=1), auth=tokens.settings) as bench:
        await call(bench, "Generate", bulk, priority=types_pb2.PRIORITY_CLASS_BULK)
        for priority in (0, types_pb2.PRIORITY_CLASS_SYSTEM):
            error = await refusal(bench, "Generate", bulk, priority=priority)
            assert error.status_code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_holder_ends_its_own_requests_alone(tokens: Tokens) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    root = tokens.add("root", "admin = true")
    async with routed(Script(tokens=1), auth=tokens.settings) as bench:
        hers, his = (
            bench.stub.Generate(ask(request_id="mine", labels=STALLED), metadata=metadata)
            for metadata in (alice, bob)
        )
        ours = (await read_until(hers, "accepted")).accepted.request_id
        await read_until(hers, "started")
        await read_until(his, "started")

        async def abort(metadata: Metadata, *ids: str) -> list[int]:
            answer = await call(bench, "Abort", metadata, request_ids=ids)
            return [answer.results[each] for each in ids]

        assert await abort(bob, ours) == [router_pb2.AbortResponse.RESULT_NOT_FOUND]
        assert await abort(bob, "mine") == [router_pb2.AbortResponse.RESULT_ABORTED]
        ended = (await collect(his))[-1].finished
        assert ended.reason == types_pb2.FINISH_REASON_ABORTED
        assert await abort(root, ours) == [router_pb2.AbortResponse.RESULT_ABORTED]
        assert (await collect(hers))[-1].finished.reason == types_pb2.FINISH_REASON_ABORTED


async def test_limits_are_counted_by_name_whatever_keys_are_given(tokens: Tokens) -> None:
    alice, bob = tokens.add("alice", "requests_max = 1"), tokens.add("bob")
    async with routed(auth=tokens.settings) as bench:
        running = [
            bench.stub.Generate(ask(labels=STALLED, fairness_key=key), metadata=metadata)
            for metadata, key in ((alice, "a"), (bob, "a"), (bob, "b"))
        ]
        for stream in running:
            await read_until(stream, "accepted")
        error = await refusal(bench, "Generate", alice, fairness_key="another")
        assert (error.reason, error.facts["client"]) == ("CLIENT_CONCURRENCY", "alice")
        for stream in running:
            stream.cancel()


async def test_a_holder_has_no_more_turns_by_naming_many_keys(tokens: Tokens) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    async with routed(Script(tokens=1, max_rows=1), auth=tokens.settings) as bench:
        gate = bench.router.models.by_name[ModelName("fake")].gate
        first = bench.stub.Generate(ask(request_id="x", labels=STALLED), metadata=alice)
        await read_until(first, "started")
        order: list[str] = []

        async def one(name: str, metadata: Metadata, key: str) -> None:
            stream = bench.stub.Generate(ask(fairness_key=key), metadata=metadata)
            await read_until(stream, "started")
            order.append(name)
            await collect(stream)

        waiting = [one("alice", alice, f"key{number}") for number in range(4)]
        tasks = [asyncio.create_task(each) for each in waiting]
        await until(lambda: gate.waiting_count == 4)
        tasks += [asyncio.create_task(one("bob", bob, "key")) for _ in range(2)]
        await until(lambda: gate.waiting_count == 6)
        first.cancel()
        await asyncio.gather(*tasks)
        assert order[:4].count("bob") == 2


async def test_a_worker_is_told_a_salt_of_the_holders_own(tokens: Tokens) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob", "shared_cache = true")
    async with routed(Script(tokens=1), auth=tokens.settings) as bench:
        worker = bench.node.workers["fake"]
        for metadata, salt in ((alice, ""), (alice, "x"), (bob, ""), (bob, "alice/x")):
            fields = {"model": "fake", "session_key": "s", "salt": salt}
            await call(bench, "CloseSession", metadata, **fields)
        salts = [salt for _, salt in worker.closed]
        assert salts == ["alice/", "alice/x", "", "/alice/x"]


async def test_a_token_that_is_taken_back_is_refused_at_once(tokens: Tokens) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        await call(bench, "ListModels", alice)
        tokens.remove("alice")
        error = await refusal(bench, "ListModels", alice)
        assert error.status_code is grpc.StatusCode.UNAUTHENTICATED
        await call(bench, "ListModels", bob)
        await call(bench, "ListModels", tokens.add("carol"))


@pytest.mark.parametrize("how", ["text", "mode", "gone"])
async def test_a_tokens_file_that_breaks_keeps_the_old_tokens_and_is_told_once(
    tokens: Tokens, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    alice = tokens.add("alice")
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        await call(bench, "ListModels", alice)
        if how == "gone":
            tokens.file.unlink()
        else:
            tokens.write("[tokens.alice]\nsha256 = ''" if how == "text" else "")
            tokens.file.chmod(0o644 if how == "mode" else 0o600)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                await call(bench, "ListModels", alice)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "router.auth.tokens_file" in caplog.text
        tokens.remove("alice")
        error = await refusal(bench, "ListModels", alice)
        assert error.status_code is grpc.StatusCode.UNAUTHENTICATED


async def test_refusals_at_the_door_are_counted_and_few_lines_tell_of_them(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    async with routed(auth=tokens.settings, models=(), is_ready=False) as bench:
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                await refusal(bench, "Generate", metadata_of(new_token()))
        assert len(caplog.records) == 1
        counted = bench.router.metrics.registry.get_sample_value(
            "bramley_router_requests_total",
            {"model": "", "code": "UNAUTHENTICATED", "finish": "none"},
        )
        assert counted == 20


@asynccontextmanager
async def secured(bench: Bench, credentials: grpc.ChannelCredentials) -> AsyncGenerator[Bench]:
    """The same router, seen through TLS.

    Yields:
        It.
    """
    address = bench.router.addresses["grpc"]
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        yield Bench(bench.router, bench.node, channel, stub)


async def test_tls_and_a_token_together_let_a_stream_through(
    tokens: Tokens, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    alice = tokens.add("alice")
    async with (
        routed(Script(tokens=3), auth=tokens.settings, tls=authority.server()) as bench,
        secured(bench, authority.channel()) as safe,
    ):
        assert text_of(await call(safe, "Generate", alice)) == "0 1 2 "
        error = await refusal(safe, "Generate")
        assert error.status_code is grpc.StatusCode.UNAUTHENTICATED
        _, in_clear = await collect_until_error(bench.stub.Generate(ask(), metadata=alice))
        assert in_clear.code() is grpc.StatusCode.UNAVAILABLE


async def test_with_an_authority_for_clients_a_certificate_is_enough_and_needed(
    tmp_path: Path,
) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    mine = clients.issue("mine", "mine")
    async with routed(Script(tokens=3), tls=authority.server(clients.file)) as bench:
        async with secured(bench, authority.channel(mine)) as safe:
            assert text_of(await call(safe, "Generate")) == "0 1 2 "
        async with secured(bench, authority.channel()) as stranger:
            error = await refusal(stranger, "ListModels")
            assert error.status_code is grpc.StatusCode.UNAVAILABLE


async def test_streams_go_on_when_certificates_and_tokens_change_under_them(
    tokens: Tokens, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    alice = tokens.add("alice")
    script = Script(tokens=20, interval_s=0.01)
    async with (
        routed(script, auth=tokens.settings, tls=authority.server()) as bench,
        secured(bench, authority.channel()) as safe,
    ):
        stream = safe.stub.Generate(ask(), metadata=alice)
        await read_until(stream, "started")
        authority.server()
        tokens.remove("alice")
        assert text_of(await collect(stream)).endswith("19 ")
        error = await refusal(safe, "ListModels", alice)
        assert error.status_code is grpc.StatusCode.UNAUTHENTICATED


async def test_one_callers_identity_is_not_anothers(tokens: Tokens) -> None:
    names = [f"t{number}" for number in range(8)]
    known = {name: tokens.add(name, f'models = ["{name}"]') for name in names}
    async with routed(models=tuple(names), auth=tokens.settings, is_ready=False) as bench:

        async def models_of(name: str) -> list[str]:
            answer = await call(bench, "ListModels", known[name])
            return [model.name for model in answer.models]

        asked = names * 8
        assert await asyncio.gather(*map(models_of, asked)) == [[name] for name in asked]
