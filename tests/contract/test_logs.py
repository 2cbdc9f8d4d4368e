"""Logs of the router: whose each line is, an object a line, and never what was said."""

import asyncio
import contextlib
import json
import logging
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from bramley.bench.children import context_of, spawn
from bramley.common import logs
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, router_pb2_grpc, types_pb2
from bramley.router.settings import RouterSettings
from support.node import FakeNode
from support.routing import Bench, ask, collect, read_until, routed
from support.script import Script

SECRET = "xyzzy-7f3a"  # noqa: S105  a prompt
FAULTS = ("oom", "fault", "end", "bad_field")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Everything that this process logs, router and workers alike, down to DEBUG."""
    seen: list[str] = []
    forms = [logs.formatter("test", form) for form in ("text", "json")]

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.extend(form.format(record) for form in forms)

    handler, ours = Keeping(), logging.getLogger("bramley")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield seen
    ours.removeHandler(handler)
    ours.setLevel(logging.NOTSET)


def secret_requests() -> Iterator[generation_pb2.GenerateRequest]:
    said = types_pb2.ChatMessage(role="user", content=SECRET)
    inputs: list[dict[str, Any]] = [
        {"text": SECRET},
        {"chat": types_pb2.ChatInput(messages=[said])},
        {"token_ids": types_pb2.TokenIds(ids=list(SECRET.encode()))},
    ]
    hints = {"cache": types_pb2.CacheHints(salt=SECRET), "session_key": SECRET}
    stop = types_pb2.StopConditions(strings=[SECRET], bad_words=[SECRET], max_tokens=40)
    for given in inputs:
        yield ask(**given, **hints, stop=stop, labels={"fake.echo": "true"})
    for fault in FAULTS:
        for point in ("prepare", "started", "delta"):
            yield ask(text=SECRET, labels={f"fake.{fault}": point, "fake.echo": "true"})
    yield ask(text=SECRET, model="nobody's")
    yield ask(text=SECRET, n=-1)


async def asked(bench: Bench, request: generation_pb2.GenerateRequest) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await collect(bench.stub.Generate(request))


async def test_what_is_said_is_never_in_a_log(lines: list[str]) -> None:
    async with routed(Script(tokens=3)) as bench:
        for request in secret_requests():
            await bench.ready()  # a stream that was cut short has it report anew
            await asked(bench, request)
        await bench.ready()
        left = bench.stub.Generate(ask(text=SECRET, labels={"fake.stall": "delta"}))
        await read_until(left, "delta")
        left.cancel()
        await asked(bench, ask(text=SECRET, labels={"fake.die": "delta"}))
    spelled = "".join(str(byte) for byte in SECRET.encode())
    assert len(lines) > 10
    assert [line for line in lines if SECRET in line or spelled in line] == []


async def test_a_request_s_lines_name_it_and_others_name_none(lines: list[str]) -> None:
    async with routed() as bench:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(bench.stub.Generate(ask(labels={"fake.end": "delta"})))
            await bench.ready()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    lost = [line for line in told if line["message"] == "worker lost under a request"]
    assert [line["request_id"] for line in lost] == ["r1-1", "r1-2"]
    states = [line for line in told if line["message"] == "worker state"]
    assert states
    assert not [line for line in states if "request_id" in line]


async def test_a_process_that_is_told_so_writes_objects_alone() -> None:
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        node = FakeNode(Path(folder), Script(tokens=3))
        await node.serve()
        settings = RouterSettings(
            grpc="127.0.0.1:0", http="127.0.0.1:0", node=node.target, models={"fake": {}}
        )
        context = context_of("router", "router", folder, epoch=7)
        context = msgspec.structs.replace(context, log_format="json")
        router = await spawn(["-m", "bramley.router"], context, settings, asyncio.subprocess.PIPE)
        try:
            async with open_channel(router.addresses["grpc"]) as channel:
                stub = router_pb2_grpc.RouterServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError):
                    await collect(stub.Generate(ask(labels={"fake.end": "delta"})))
            router.process.send_signal(signal.SIGTERM)
            _, errors = await router.process.communicate()
        finally:
            await router.end()
            await node.close()
        told = [json.loads(line) for line in errors.decode().splitlines()]
        assert {"serving", "worker state", "stopping"} <= {line["message"] for line in told}
        assert {(line["process"], line["pid"]) for line in told} == {("router", router.process.pid)}
        (lost,) = [line for line in told if line["message"] == "worker lost under a request"]
        assert lost["request_id"] == "r7-1"
        (serving,) = [line for line in told if line["message"] == "serving"]
        assert serving["grpc"] == router.addresses["grpc"]
