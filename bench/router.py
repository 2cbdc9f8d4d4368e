"""What the router costs: fake workers, the router and this client, a process each.

``python -m bramley.bench.router`` prints one line for each number of streams, and ends with 1 if
anything is not as required. Workers offer a token each millisecond a stream; "direct" is the
same client on the worker itself. Rates and costs are judged at 64 streams.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvloop

from bramley.bench.figures import Required
from bramley.bench.node import MODEL, Setup, processes
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2

INTERVAL_S = 0.001
STREAMS = (1, 4, 16, 64, 256)
JUDGED_AT = 64  # streams
REQUIRED = {
    "tokens_s": Required(">=", 25_000),
    "router_us_token": Required("<=", 30.0),
    "requests_s": Required(">=", 400),
    "router_ms_request": Required("<=", 2.0),
}
STALL_MS = Required("<=", 2000.0)  # without a token, of any stream of any run


@dataclass
class Streamed:
    """One stream as its client saw it."""

    ttft_s: float = 0.0
    tokens: int = 0
    messages: int = 0
    longest_gap_s: float = 0.0


@dataclass
class Row:
    """One run."""

    tokens_s: float
    router_us_token: float
    messages_token: float
    longest_gap_ms: float
    requests_s: float
    router_ms_request: float
    added_ttft_ms: float


def request(tokens: int) -> generation_pb2.GenerateRequest:
    """Ask the fake model for ``tokens`` tokens, one each interval."""
    return generation_pb2.GenerateRequest(
        model=MODEL,
        text="hello",
        stop=types_pb2.StopConditions(max_tokens=tokens),
        labels={"fake.interval_s": str(INTERVAL_S)},
    )


async def _read(call: Any, start_s: float) -> Streamed:  # noqa: ANN401
    seen, last_s = Streamed(), 0.0
    async for response in call:
        if response.WhichOneof("event") != "delta":
            continue
        now_s = time.perf_counter()
        if seen.messages:
            seen.longest_gap_s = max(seen.longest_gap_s, now_s - last_s)
        else:
            seen.ttft_s = now_s - start_s
        last_s = now_s
        seen.messages += 1
        seen.tokens += len(response.delta.token_ids)
    return seen


async def through_router(setup: Setup, tokens: int) -> Streamed:
    """Stream one answer through the router."""
    start_s = time.perf_counter()
    return await _read(setup.through.Generate(request(tokens)), start_s)


async def direct(setup: Setup, tokens: int) -> Streamed:
    """Stream one answer from the worker itself."""
    start_s, asked = time.perf_counter(), request(tokens)
    prepared = await setup.direct.Prepare(worker_pb2.PrepareRequest(request=asked))
    message = worker_pb2.WorkerServiceGenerateRequest(
        request=asked, prepared=prepared, internal_id=f"bench-{start_s}"
    )
    return await _read(setup.direct.Generate(message), start_s)


async def _median_ttft_s(one: Callable[[Setup, int], Awaitable[Streamed]], setup: Setup) -> float:
    return statistics.median([(await one(setup, 1)).ttft_s for _ in range(20)])


async def measure(setup: Setup, streams: int, tokens: int) -> Row:
    """Run long streams, then many short requests, then single ones on an idle machine."""
    cpu_s, start_s = setup.router_cpu_s(), time.perf_counter()
    seen = await asyncio.gather(*[through_router(setup, tokens) for _ in range(streams)])
    wall_s, cpu_s = time.perf_counter() - start_s, setup.router_cpu_s() - cpu_s
    total = sum(stream.tokens for stream in seen)
    assert total == streams * tokens, "tokens were lost"

    async def short(count: int) -> None:
        for _ in range(count):
            await through_router(setup, 1)

    count = 256 // streams
    short_cpu_s, start_s = setup.router_cpu_s(), time.perf_counter()
    await asyncio.gather(*[short(count) for _ in range(streams)])
    short_wall_s = time.perf_counter() - start_s
    short_cpu_s = setup.router_cpu_s() - short_cpu_s
    added_s = await _median_ttft_s(through_router, setup) - await _median_ttft_s(direct, setup)
    return Row(
        tokens_s=total / wall_s,
        router_us_token=cpu_s / total * 1e6,
        messages_token=sum(stream.messages for stream in seen) / total,
        longest_gap_ms=max(stream.longest_gap_s for stream in seen) * 1e3,
        requests_s=streams * count / short_wall_s,
        router_ms_request=short_cpu_s / (streams * count) * 1e3,
        added_ttft_ms=added_s * 1e3,
    )


async def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians are over this many")
    parser.add_argument("--tokens", type=int, default=1000, help="of each stream")
    arguments = parser.parse_args()
    names = [name.replace("_", " ") for name in Row.__dataclass_fields__]
    print("  ".join(["streams", *names]))
    medians: dict[int, dict[str, float]] = {}
    longest_ms = 0.0
    async with processes() as setup:
        await measure(setup, 4, 100)  # warm
        for streams in STREAMS:
            rows = [await measure(setup, streams, arguments.tokens) for _ in range(arguments.runs)]
            longest_ms = max(longest_ms, *(row.longest_gap_ms for row in rows))
            found = medians[streams] = {
                field: statistics.median(getattr(row, field) for row in rows)
                for field in Row.__dataclass_fields__
            }
            print(f"{streams:7d}", end="")
            for name, value in zip(names, found.values(), strict=True):
                print(f"  {value:{len(name)}.2f}", end="")
            print(flush=True)
    return judge(medians[JUDGED_AT], longest_ms)


def judge(found: dict[str, float], longest_ms: float) -> int:
    """Print what is required and whether it is so; 1 if anything is not."""
    print(f"\nat {JUDGED_AT} streams:")
    judged = [(field, found[field], required) for field, required in REQUIRED.items()]
    judged.append(("longest gap ms, anywhere", longest_ms, STALL_MS))
    for field, value, required in judged:
        word = "ok" if required.is_met(value) else "MISSED"
        print(f"{field.replace('_', ' ')}: {value:.2f}, {required}: {word}")
    return int(not all(required.is_met(value) for _, value, required in judged))


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
