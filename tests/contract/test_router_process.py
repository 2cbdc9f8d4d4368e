"""The router as its supervisor runs it: the hand-shake, the good end, the refusal to start."""

import asyncio
import signal
import stat
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bramley.bench.children import Spawned, context_of, spawn
from bramley.common.rpc import bind, new_server, open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, router_pb2_grpc
from bramley.router.settings import RouterSettings
from support.node import FakeNode
from support.routing import ask, collect, collect_until_error, read_until, text_of
from support.script import Script


@asynccontextmanager
async def spawned(folder: str, settings: RouterSettings) -> AsyncGenerator[Spawned]:
    who = context_of("router", "router", folder, epoch=7)
    router = await spawn(["-m", "bramley.router"], who, settings, asyncio.subprocess.PIPE)
    try:
        yield router
    finally:
        await router.end()


async def test_it_tells_where_it_answers_and_sigterm_lets_its_streams_end() -> None:
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        node = FakeNode(Path(folder), Script(tokens=50, interval_s=0.01))
        await node.serve()
        settings = RouterSettings(
            grpc="127.0.0.1:0", http="127.0.0.1:0", node=node.target, models={"fake": {}}
        )
        async with (
            spawned(folder, settings) as router,
            open_channel(router.addresses["grpc"]) as channel,
        ):
            assert router.addresses.keys() == {"grpc", "http", "socket"}
            assert router.addresses["socket"] == f"unix:{folder}/router-7.sock"
            stub = router_pb2_grpc.RouterServiceStub(channel)
            call = stub.Generate(ask())
            await read_until(call, "delta")
            router.process.send_signal(signal.SIGTERM)
            while not (await stub.GetStatus(router_pb2.GetStatusRequest())).draining:
                pass
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            _, refusal = await collect_until_error(stub.Generate(ask()))
            assert RemoteError(refusal).reason == "DRAINING"
            assert text_of(await collect(call)).endswith("48 49 ")
            assert await call.code() is grpc.StatusCode.OK
            assert await router.process.wait() == 0
        await node.close()


async def test_a_taken_address_ends_it_with_exit_code_1_and_one_line_that_names_it() -> None:
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        async with spawned(folder, RouterSettings(grpc="127.0.0.1:0", http="")) as first:
            taken = RouterSettings(grpc=first.addresses["grpc"], http="")
            async with spawned(folder, taken) as second:
                assert second.addresses == {}
                _, errors = await second.process.communicate()
                assert second.process.returncode == 1
                (line,) = [line for line in errors.decode().splitlines() if "router" in line]
                assert taken.grpc in line


async def test_an_address_that_nothing_guards_ends_it_with_exit_code_2_and_one_line() -> None:
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        async with spawned(folder, RouterSettings(grpc="0.0.0.0:0", http="")) as router:
            assert router.addresses == {}
            _, errors = await router.process.communicate()
            assert router.process.returncode == 2
            (line,) = errors.decode().splitlines()
            assert "router.grpc" in line


async def test_a_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    server = new_server()
    bind(server, f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
