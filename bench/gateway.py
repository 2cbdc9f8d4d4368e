"""What the HTTP gateway costs beside gRPC: one router, asked both ways in turns in one run.

``python -m bramley.bench.gateway`` prints the router's CPU time a request and a token for one
stream and for many, the longest gap between two pieces of any stream, and how the router's memory
grows under clients that do not read; then HTTP's figures over gRPC's. Workers are fake, and offer
a token each millisecond a stream.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import uvloop

from bramley.bench.figures import Required
from bramley.bench.node import MODEL, Setup, processes
from bramley.bench.router import INTERVAL_S, Streamed, through_router

PATH = "/v1/completions"
STREAMS = (1, 64)
SHORT = 128  # requests of one token, of all streams together
WAYS = ("gRPC", "HTTP")
SLOW_READERS = 8
SLOW_TOKENS = 1_000_000
SLOW_S = 10.0
REQUIRED = {
    "CPU a token": Required("<=", 3.0),  # times gRPC's, at the most streams
    "CPU a request": Required("<=", 3.0),
    "longest gap ms": Required("<=", 2000.0),
    "MiB a slow reader": Required("<=", 8.0),
}

Stream = Callable[[Setup, int], Awaitable[Streamed]]


@dataclass
class Row:
    """One way to ask, with so many streams."""

    tokens_s: float
    us_token: float
    ms_request: float
    longest_gap_ms: float
    ttft_ms: float


def asked(tokens: int, interval_s: float = INTERVAL_S) -> bytes:
    """Write down a request for a stream of ``tokens`` tokens, one each interval."""
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": "hello",
            "max_tokens": tokens,
            "stream": True,
            "metadata": {"fake.interval_s": str(interval_s)},
        }
    ).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.asynccontextmanager
async def connected(
    setup: Setup,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Be connected for the length of the block."""
    host, _, port = setup.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def through_gateway(setup: Setup, tokens: int) -> Streamed:
    """Stream one answer over HTTP, on a connection of its own."""
    start_s = last_s = time.perf_counter()
    seen, rest = Streamed(), b""
    async with connected(setup) as (reader, writer):
        writer.write(asked(tokens))
        while piece := await reader.read(1 << 16):
            now_s = time.perf_counter()
            if b"data: {" in piece:
                if seen.messages:
                    seen.longest_gap_s = max(seen.longest_gap_s, now_s - last_s)
                else:
                    seen.ttft_s = now_s - start_s
                last_s = now_s
                seen.messages += 1
            whole, _, rest = (rest + piece).rpartition(b"\n\n")
            seen.tokens += tokens_in(whole)
    assert seen.messages, "nothing was answered"
    return seen


def tokens_in(events: bytes) -> int:
    """Count the tokens of events: the fake model's are numbers, each with a space behind it."""
    texts = (part.partition(b'"')[0] for part in events.split(b'"text":"')[1:])
    return sum(text.count(b" ") for text in texts)


async def measure(setup: Setup, one: Stream, streams: int, tokens: int) -> Row:
    """Run long streams side by side, then short ones."""
    cpu_s, start_s = setup.router_cpu_s(), time.perf_counter()
    seen = await asyncio.gather(*[one(setup, tokens) for _ in range(streams)])
    wall_s, cpu_s = time.perf_counter() - start_s, setup.router_cpu_s() - cpu_s
    total = sum(stream.tokens for stream in seen)
    assert total == streams * tokens, f"{total} tokens of {streams * tokens}"
    each = SHORT // streams
    shorts: list[Streamed] = []

    async def short() -> None:
        shorts.extend([await one(setup, 1) for _ in range(each)])

    short_cpu_s = setup.router_cpu_s()
    await asyncio.gather(*[short() for _ in range(streams)])
    short_cpu_s = setup.router_cpu_s() - short_cpu_s
    return Row(
        tokens_s=total / wall_s,
        us_token=cpu_s / total * 1e6,
        ms_request=short_cpu_s / (each * streams) * 1e3,
        longest_gap_ms=max(stream.longest_gap_s for stream in seen) * 1e3,
        ttft_ms=statistics.median(stream.ttft_s for stream in shorts) * 1e3,
    )


async def slow_readers(setup: Setup) -> float:
    """Have clients that ask for much and read nothing; MiB that the router grows by for each."""
    before = setup.router.memory_info().rss
    most = before
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SLOW_READERS):
            _, writer = await stack.enter_async_context(connected(setup))
            writer.write(asked(SLOW_TOKENS, interval_s=0.0))
        end_s = time.perf_counter() + SLOW_S
        while time.perf_counter() < end_s:
            most = max(most, setup.router.memory_info().rss)
            await asyncio.sleep(0.1)
    return (most - before) / SLOW_READERS / (1 << 20)


async def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians are over this many")
    parser.add_argument("--tokens", type=int, default=1000, help="of each stream")
    arguments = parser.parse_args()
    ways: dict[str, Stream] = dict(zip(WAYS, (through_router, through_gateway), strict=True))
    found: dict[tuple[str, int], list[Row]] = {}
    async with processes(http="127.0.0.1:0") as setup:
        for one in ways.values():
            await measure(setup, one, 2, 50)  # warm
        for streams in STREAMS:
            for _ in range(arguments.runs):
                for name, one in ways.items():
                    row = await measure(setup, one, streams, arguments.tokens)
                    found.setdefault((name, streams), []).append(row)
        grown = await slow_readers(setup)
    return report(found, grown)


def report(found: dict[tuple[str, int], list[Row]], grown_mib: float) -> int:
    """Print medians and ratios; 1 if anything is not as required."""
    fields = list(Row.__dataclass_fields__)
    print("  ".join(["way ", "streams", *(field.replace("_", " ") for field in fields)]))
    medians = {
        key: {field: statistics.median(getattr(row, field) for row in rows) for field in fields}
        for key, rows in found.items()
    }
    for (name, streams), values in medians.items():
        figures = "".join(f"  {value:{len(field)}.2f}" for field, value in values.items())
        print(f"{name}  {streams:7d}{figures}")
    grpc, http = (medians[name, STREAMS[-1]] for name in WAYS)
    longest_ms = max(row.longest_gap_ms for rows in found.values() for row in rows)
    judged = {
        "CPU a token": http["us_token"] / grpc["us_token"],
        "CPU a request": http["ms_request"] / grpc["ms_request"],
        "longest gap ms": longest_ms,
        "MiB a slow reader": grown_mib,
    }
    print(f"\nHTTP at {STREAMS[-1]} streams, CPU as a multiple of gRPC's:")
    for name, value in judged.items():
        required = REQUIRED[name]
        print(f"{name}: {value:.2f}, {required}: {'ok' if required.is_met(value) else 'MISSED'}")
    return int(not all(REQUIRED[name].is_met(value) for name, value in judged.items()))


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
