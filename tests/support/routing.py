"""A router in the test's own process, with a fake node: what contract tests stand on."""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from bramley.common import rpc
from bramley.common.ids import ModelName
from bramley.protos.v1 import generation_pb2, router_pb2, router_pb2_grpc, types_pb2
from bramley.router.process import Router
from bramley.router.settings import RouterSettings
from support.node import FakeNode
from support.script import Script

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub

MODEL = "fake"
WAIT_S = 30.0


@dataclass
class Bench:
    """A router, its node and a client.

    Attributes:
        channel: to the router's public address.
    """

    router: Router
    node: FakeNode
    channel: grpc.aio.Channel
    stub: "RouterServiceAsyncStub"

    async def ready(self, model: str = MODEL) -> None:
        """Wait until the router sees the model's worker as ready."""
        await self.state(types_pb2.MODEL_STATE_READY, model)

    async def all_ready(self, workers: int, model: str = MODEL) -> None:
        """Wait until so many of the model's workers are ready."""
        replicas = self.router.models.gates[ModelName(model)].replicas
        await until(lambda: sum(view.is_ready for view in replicas.views) == workers)

    async def state(self, state: types_pb2.ModelState.ValueType, model: str = MODEL) -> None:
        """Wait until the router shows the model in ``state``."""
        found = self.router.models.by_name[ModelName(model)]
        await until(lambda: found.state == state)


async def until(claim: Callable[[], bool]) -> None:
    """Wait until a claim holds.

    Raises:
        AssertionError: it did not in time.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline_s, "it never came true"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def routed(
    script: Script | None = None,
    *,
    models: tuple[str, ...] = (MODEL,),
    in_processes: bool = False,
    is_ready: bool = True,
    http: str = "",
    **settings: Any,
) -> AsyncGenerator[Bench]:
    """Run a router over fake workers for the length of the block.

    Yields:
        It, its models ready if ``is_ready``.
    """
    with tempfile.TemporaryDirectory(prefix="bramley-") as name:
        node = FakeNode(Path(name), script, in_processes=in_processes)
        await node.serve()
        made = RouterSettings(
            grpc="127.0.0.1:0",
            node=node.target,
            http=http,
            models={model: {"path": "none"} for model in models},
            **settings,
        )
        router = Router(made, f"unix:{name}/router.sock", epoch=1)
        try:
            async with router.serve(), rpc.open_channel(router.addresses["grpc"]) as channel:
                bench = Bench(router, node, channel, router_pb2_grpc.RouterServiceStub(channel))
                for model in models if is_ready else ():
                    await bench.ready(model)
                yield bench
        finally:
            await node.close()


def ask(**fields: Any) -> generation_pb2.GenerateRequest:
    """Make a request to the fake model: ``ask(text="hi", labels={"fake.tokens": "3"})``."""
    made: dict[str, Any] = {"model": MODEL, **fields}
    if not fields.keys() & {"chat", "text", "token_ids"}:
        made["text"] = "hello"
    return generation_pb2.GenerateRequest(**made)


async def collect(call: Any) -> list[router_pb2.GenerateResponse]:
    """Read a stream to its end; part of it may have been read before."""
    responses: list[router_pb2.GenerateResponse] = []
    while isinstance(response := await call.read(), router_pb2.GenerateResponse):
        responses.append(response)
    return responses


async def collect_until_error(
    call: Any,
) -> tuple[list[router_pb2.GenerateResponse], grpc.aio.AioRpcError]:
    """Read a stream that fails.

    Returns:
        What came before, and the error.

    Raises:
        AssertionError: it did not fail.
    """
    responses: list[router_pb2.GenerateResponse] = []
    try:
        while isinstance(response := await call.read(), router_pb2.GenerateResponse):
            responses.append(response)
    except grpc.aio.AioRpcError as error:
        return responses, error
    raise AssertionError("the stream ended well")


async def read_until(call: Any, kind: str) -> router_pb2.GenerateResponse:
    """Read a stream up to its first message of a kind.

    Returns:
        That message.

    Raises:
        AssertionError: the stream ended before.
    """
    while True:
        response = await call.read()
        assert isinstance(response, router_pb2.GenerateResponse), "the stream ended"
        if response.WhichOneof("event") == kind:
            return response


def text_of(responses: list[router_pb2.GenerateResponse]) -> str:
    """The text of a stream's Deltas."""
    return "".join(response.delta.text for response in responses)


def kinds_of(responses: list[router_pb2.GenerateResponse]) -> list[str]:
    """The kinds of a stream's messages, without the repetition of Deltas."""
    kinds = [response.WhichOneof("event") or "" for response in responses]
    return [kind for at, kind in enumerate(kinds) if kind != "delta" or kinds[at - 1] != "delta"]
