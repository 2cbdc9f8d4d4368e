"""A worker in a process of its own, and streams that read from it over its socket."""

import asyncio
import itertools
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bramley.bench.children import context_of, spawn
from bramley.bench.timeline import Timeline
from bramley.common import rpc
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2, worker_pb2_grpc
from bramley.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

MODEL = "measured"


class Served:
    """A worker that is ready."""

    def __init__(self, stub: "WorkerServiceAsyncStub") -> None:
        self._stub = stub
        self._numbers = itertools.count()

    async def run(self, prompts: Sequence[list[int]], tokens: int) -> Timeline:
        """Stream so many greedy tokens after each prompt, all together."""
        streams = [self._stream(prompt, tokens) for prompt in prompts]
        return Timeline(await asyncio.gather(*streams))

    async def loads(self) -> AsyncGenerator[worker_pb2.Load]:
        """Tell the worker's load, at every change and now and then.

        Yields:
            How it is now.
        """
        async for told in self._stub.WatchLoad(worker_pb2.WatchLoadRequest()):
            yield told.load

    async def _stream(self, prompt: list[int], tokens: int) -> list[float]:
        asked = generation_pb2.GenerateRequest(
            model=MODEL,
            token_ids=types_pb2.TokenIds(ids=prompt),
            stop=types_pb2.StopConditions(max_tokens=tokens, ignore_eos=True),
            sampling=types_pb2.SamplingParams(temperature=0.0),
            cache=types_pb2.CacheHints(skip_lookup=True, skip_store=True),
        )
        prepared = await self._stub.Prepare(worker_pb2.PrepareRequest(request=asked))
        message = worker_pb2.WorkerServiceGenerateRequest(
            request=asked, prepared=prepared, internal_id=f"bench-{next(self._numbers)}"
        )
        times: list[float] = []
        async for response in self._stub.Generate(message):
            if response.WhichOneof("event") == "delta":
                times += [time.monotonic()] * len(response.delta.token_ids)
        return times


@asynccontextmanager
async def serving(model: Path, max_rows: int) -> AsyncGenerator[Served]:
    """Run a worker for the length of the block.

    Yields:
        It, ready.
    """
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        who = context_of("worker", MODEL, folder)
        settings = WorkerSettings(path=str(model), max_rows=max_rows)
        worker = await spawn(
            ["-P", "-m", "bramley.worker"], who, settings, asyncio.subprocess.DEVNULL
        )
        try:
            async with rpc.open_channel(who.socket) as channel:
                served = Served(worker_pb2_grpc.WorkerServiceStub(channel))
                async with aclosing(served.loads()) as loads:
                    async for load in loads:
                        if load.state == types_pb2.MODEL_STATE_READY:
                            break
                yield served
        finally:
            await worker.end(signal.SIGTERM)
