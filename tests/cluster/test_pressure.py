"""A store that cannot keep up: answers stay as they are, and in the end everything is stored."""

import asyncio
import json
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from bramley.client.client import AsyncClient
from bramley.client.events import Completion
from bramley.common.status import RemoteError
from support.served import Served, serving

TOKENS = 8
CONVERSATIONS = 6
OVER_HTTP: Any = {"model": "one", "temperature": 0, "max_tokens": TOKENS}
STORE = str(Path(__file__).parents[1] / "support" / "holding_store.py")

SETTINGS = """
[models.one]
path = "{models}/tiny"
[store]
ram_bytes = 200000000
disk_bytes = 400000000
write_queue_bytes = 300000  # one extent of two blocks
[node]
store_command = {command}
"""


def prompt(name: str) -> str:
    """A prompt of 700 tokens (bytes) that nothing else shares."""
    text = f"{name}: "
    while len(text) < 700:
        text += f"{len(text)} apples, "
    return text[:700]


async def ask(served: Served, text: str) -> Completion:
    return await served.completed("one", text, max_tokens=TOKENS)


async def metric(served: Served, name: str) -> float:
    """Read a metric of the router, summed over its labels."""
    host, port = served.cluster.node.addresses["http"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    lines = [line for line in page.splitlines() if line.startswith(f"bramley_router_{name}")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def until_owed(served: Served, conversations: int) -> None:
    while await metric(served, "snapshots_owed") != conversations:  # noqa: ASYNC110 scraped
        await asyncio.sleep(0.05)


async def until_stopping(served: Served) -> None:
    """Wait until the worker has been told to end; what it owes is still to be stored."""
    while "stopping: " not in served.cluster.log("worker", "one"):  # noqa: ASYNC110 a file
        await asyncio.sleep(0.05)


async def until_linked(served: Served, text: str) -> None:
    """Wait until the worker has found the store."""
    while True:
        try:
            told = await served.client.explain_cache("one", text)
        except RemoteError:
            pass
        else:
            if sum(told.cached_tokens.values()):
                return
        await asyncio.sleep(0.05)


async def check_hits(served: Served, cold: dict[str, Completion]) -> None:
    """Ask everything again: all of it comes from the disk, and the answers are the same.

    The cases' B055: it does so, and is told, whichever way somebody asks.
    """
    await served.cluster.within(until_linked(served, next(iter(cold))))
    base = f"http://{served.cluster.node.addresses['http'].removeprefix('http://')}/v1"
    async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as http:
        for (text, first), way in zip(cold.items(), cycle((grpc, whole, streamed))):
            assert await way(served, http, text) == (first.text, 699)


async def grpc(served: Served, _: Any, text: str) -> tuple[str, int]:
    """Ask, and tell the answer and how many tokens the disk had."""
    told = await ask(served, text)
    return told.text, told.usage.cached_tokens["ssd"]


async def whole(_: Served, http: Any, text: str) -> tuple[str, int]:
    """Ask over HTTP."""
    told: Any = await http.completions.create(**OVER_HTTP, prompt=text)
    return told.choices[0].text, told.usage.prompt_tokens_details.cached_tokens


async def streamed(_: Served, http: Any, text: str) -> tuple[str, int]:
    """Ask for a stream over HTTP."""
    asked: Any = {**OVER_HTTP, "stream": True, "stream_options": {"include_usage": True}}
    stream: Any = await http.completions.create(**asked, prompt=text)
    *chunks, last = [each async for each in stream]
    said = "".join(chunk.choices[0].text for chunk in chunks)
    return said, last.usage.prompt_tokens_details.cached_tokens


async def test_what_a_full_queue_refused_is_stored_later_and_outlives_all(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    command = json.dumps([sys.executable, "-P", STORE, str(hold)])
    async with serving(
        tmp_path, lambda models: SETTINGS.format(models=models, command=command)
    ) as served:
        hold.touch()
        await ask(served, prompt("fills the queue"))
        cold = {text: await ask(served, text) for text in map(prompt, "abcdef")}
        assert len(cold) == CONVERSATIONS  # and of the one before, the end
        await served.cluster.within(until_owed(served, CONVERSATIONS + 1))
        hold.unlink()
        flushed = await served.client.flush_cache("one")
        assert flushed.ok, flushed
        await served.cluster.within(until_owed(served, 0))

        for role, name in (("worker", "one"), ("store", "store")):
            killed = await served.cluster.kill(role, name)
            await served.cluster.running(role, name, after=killed.epoch)
        await served.ready()
        await check_hits(served, cold)

        # And at a clean stop, nobody has to flush.
        hold.touch()
        await ask(served, prompt("fills it again"))
        cold = {text: await ask(served, text) for text in map(prompt, "ghi")}
        stopping = asyncio.create_task(served.cluster.down())
        await served.cluster.within(until_stopping(served))
        hold.unlink()
        await stopping
        await served.cluster.up()
        async with AsyncClient(served.cluster.node.addresses["grpc"]) as client:
            again = Served(served.cluster, client)
            await again.ready()
            await check_hits(again, cold)
