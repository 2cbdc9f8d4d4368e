"""The cluster that most cluster tests ask: which models it serves, and how they are reached."""

import asyncio
import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Unpack

from bramley.client.client import AsyncClient
from bramley.client.events import Completion, Delta
from bramley.client.requests import Options
from support.cluster import SUPERVISOR, Cluster

# What the model "script" says after a prompt that ends on the byte.
SAYS = {
    "\x01": "a😀b👩‍👩‍👧é",
    "\x02": " hi",
    "\x03": "  hi",
    "\x04": "\nhi",
    "\x05": "The quick brown fox jumps",
    "\x06": "xxabcd",
    "\x07": "a </en b",
    "\x08": "one 😀 two",
    "\x0e": "a\0b",
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
# What it says in a conversation: reasoning, and calls of tools as Hermes and Qwen write them.
ANSWERS = {
    "a": "abc</think>def",
    "b": "<think>abc</think>\n\ndef",
    "c": "def",
    "d": f"Let me see.\n{CALL}",
    "e": f"<think>\nWhich?\n</think>\n\n{CALL}\n{CALL.replace('Oslo', 'Rome')}",
    "f": CALL.replace('"Oslo"', '"a\\d+"'),
    "g": CALL.replace('"Oslo"', '"<a> & </tool_call> \\n ]]>"'),
    "h": CALL.replace('"Oslo"', "7"),
    "i": CALL.replace('"days": 3', f'"code": {json.dumps("if x: print(1)" * 70)}'),
    "j": CALL.replace("</tool_call>", ""),
    "k": f"{CALL}\n{CALL.replace('Oslo', 'Rome')}",
}
# "hi", and then one of three end tokens: two by the configuration, one by the tokenizer.
ENDS = {"A": 256, "B": 257, "C": 259}
ENDLESS = "L"
ZOO = ("mamba2", "jamba", "recurrent_gemma", "llama4")  # of every lane one, by its file
PRIMER = "(thinks:"
WRITER = Path(__file__).with_name("served_models.py")


def cluster_toml(models: Path) -> str:
    """Write the settings: a random model, the same with little context, and the scripts."""
    return f"""
[models.tiny]
path = "{models}/tiny"
max_rows = 4
[models.small]
path = "{models}/tiny"
context_tokens = 64
[models.script]
path = "{models}/script"
[node]
crash_loop_starts = 1000  # what a test kills has not crashed by itself
"""


class Served:
    """A running cluster and a client of it."""

    def __init__(self, cluster: Cluster, client: AsyncClient) -> None:
        self.cluster = cluster
        self.client = client

    async def ready(self, *names: str) -> None:
        """Wait until the named models, or all, are ready."""

        async def wait() -> None:
            while True:
                models = await self.client.list_models()
                if all(m.state == "ready" for m in models if not names or m.name in names):
                    return
                await asyncio.sleep(0.05)

        await self.cluster.within(wait(), timeout_s=60.0)

    async def streamed(self, prompt: str, **options: Unpack[Options]) -> list[Delta]:
        """Stream an answer of the model "script"; its deltas."""
        options = {"temperature": 0.0, **options}
        async with aclosing(self.client.generate("script", prompt, **options)) as events:
            return [event async for event in events if isinstance(event, Delta)]

    async def completed(self, model: str, prompt: str, **options: Unpack[Options]) -> Completion:
        """Wait for a greedy answer."""
        options = {"temperature": 0.0, **options}
        return await self.client.complete(model, prompt, **options)

    async def idle(self, model: str) -> None:
        """Wait until nothing of a model runs or waits."""

        async def wait() -> None:
            while True:
                told = await self.client.get_model(model)
                if not told.requests_running and not told.requests_waiting:
                    return
                await asyncio.sleep(0.02)

        await self.cluster.within(wait())


@functools.cache
def written_models() -> Path:
    """Write the models of served_models.py, once for all clusters, which only read them."""
    folder = Path(tempfile.mkdtemp(prefix="bramley-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Making them needs MLX, which stays out of the test's own process.
    write = [sys.executable, "-P", str(WRITER), str(folder)]
    tests = str(Path(__file__).parents[1])
    # MLX compiles on a CPU with the compiler that PATH has.
    env = {**os.environ, "PYTHONPATH": tests}
    subprocess.run(write, check=True, timeout=60, env=env)
    return folder


@asynccontextmanager
async def serving(
    folder: Path,
    settings: Callable[[Path], str],
    supervisor: Sequence[str] = SUPERVISOR,
    *,
    until_ready: Sequence[str] | None = (),
) -> AsyncGenerator[Served]:
    """Serve with real workers for the length of the block; nothing is left.

    Args:
        folder: a test's own.
        settings: writes the ``cluster.toml``, given the folder of served_models.py's models.
        supervisor: what Python runs as such.
        until_ready: models that are waited for: all without a name, and none if it is None.

    Yields:
        The cluster and a client of it.
    """
    cluster = Cluster(folder, settings(written_models()), supervisor)
    await cluster.up()
    try:
        async with AsyncClient(cluster.node.addresses["grpc"]) as client:
            made = Served(cluster, client)
            if until_ready is not None:
                await made.ready(*until_ready)
            yield made
    finally:
        await cluster.close()  # and checks that no process, socket or lock is left


def joined(deltas: Sequence[Delta]) -> str:
    """Join the texts of deltas."""
    return "".join(delta.text for delta in deltas)
