"""Whether health, metrics and status answer while a long prompt is computed.

``python -m bramley.bench.latency`` serves a model, has it compute a prompt of 2,000 tokens again
and again, and asks the router meanwhile. It prints how long the answers took, and ends with 1 if
any kind is too slow.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop

from bramley.bench.cluster import running
from bramley.bench.figures import Machine, Required
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, router_pb2, router_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub

EVERY_S = 0.02
SLOWEST_MS = Required("<=", 50.0)  # of each kind, at the 99th of 100
Ask = Callable[[], Awaitable[object]]


@dataclass
class Taken:
    """What was measured.

    Attributes:
        answers_ms: of each kind.
        prefill_s: of each prompt, until its first token.
    """

    answers_ms: dict[str, list[float]]
    prefill_s: list[float] = field(default_factory=list[float])


class Kept:
    """An HTTP connection that is kept between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> "Kept":
        """Connect to ``host:port``."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host.strip("[]"), int(port)))

    async def get(self, path: str) -> bytes:
        """Fetch a page that is to be answered with 200."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        first, *lines = head.split("\r\n")
        assert first.split()[1] == "200", first
        sizes = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        return await self._reader.readexactly(int(sizes[0]))


async def asked(ask: Ask, until: asyncio.Event) -> list[float]:
    """Ask again and again: what each answer took, in milliseconds."""
    took: list[float] = []
    while not until.is_set():
        start_s = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - start_s) * 1e3)
        await asyncio.sleep(EVERY_S)
    return took


async def computed(stub: "RouterServiceAsyncStub", model: str, ids: list[int]) -> float:
    """Have a prompt computed: the seconds to its first token."""
    request = generation_pb2.GenerateRequest(
        model=model,
        token_ids=types_pb2.TokenIds(ids=ids),
        stop=types_pb2.StopConditions(max_tokens=1, ignore_eos=True),
        cache=types_pb2.CacheHints(skip_lookup=True, skip_store=True),
    )
    start_s = time.perf_counter()
    async for response in stub.Generate(request):
        if response.WhichOneof("event") == "delta":
            break
    return time.perf_counter() - start_s


async def measure(addresses: dict[str, str], model: str, tokens: int, runs: int) -> Taken:
    """Ask while prompts are computed, each another one."""
    dice = random.Random(1)  # noqa: S311
    async with open_channel(addresses["grpc"]) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        health, metrics = [await Kept.connect(addresses["http"]) for _ in range(2)]
        asks: dict[str, Ask] = {
            "/healthz": lambda: health.get("/healthz"),
            "/metrics": lambda: metrics.get("/metrics"),
            "GetStatus": lambda: stub.GetStatus(router_pb2.GetStatusRequest()),
        }
        taken = Taken({name: [] for name in asks})
        for _ in range(runs):
            over = asyncio.Event()
            asking = [asyncio.create_task(asked(ask, over)) for ask in asks.values()]
            ids = [dice.randrange(300, 40_000) for _ in range(tokens)]
            taken.prefill_s.append(await computed(stub, model, ids))
            over.set()
            for name, answers in zip(asks, asking, strict=True):
                taken.answers_ms[name] += await answers
    return taken


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="prompts, one after the other")
    parser.add_argument("--tokens", type=int, default=2000, help="of a prompt")
    parser.add_argument("--model", default="smollm2", help="as the cluster calls it")
    parser.add_argument("up", nargs="*", help="arguments of `bramley up`; none: what is embedded")
    given = parser.parse_args()
    with running(given.up) as cluster:
        addresses = cluster.status()["addresses"]
        machine = Machine(measured=cluster.pids())
        taken = uvloop.run(measure(addresses, given.model, given.tokens, given.runs))
        others = machine.others_share()
    print(f"a prompt of {given.tokens} tokens took {statistics.median(taken.prefill_s):.2f} s")
    print(f"others had {others:.0%} of the machine\n")
    is_met = True
    print(f"{'asked':10s} {'answers':>8s} {'median ms':>10s} {'p99 ms':>8s} {'slowest ms':>11s}")
    for name, answers in taken.answers_ms.items():
        p99 = statistics.quantiles(answers, n=100)[98]
        is_met &= SLOWEST_MS.is_met(p99)
        word = "ok" if SLOWEST_MS.is_met(p99) else "MISSED"
        row = f"{statistics.median(answers):10.2f} {p99:8.2f} {max(answers):11.2f}"
        print(f"{name:10s} {len(answers):8d} {row}  {SLOWEST_MS}: {word}")
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
