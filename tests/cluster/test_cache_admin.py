"""What an operator does with a cache: looks into it, keeps and removes, moves it elsewhere."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from bramley.client.events import Completion
from support.served import Served, serving

SETTINGS = """
[models.one]
path = "{models}/tiny"
parked_bytes = 0  # what is shown is the store
[store]
ram_bytes = 200000000
disk_bytes = 400000000
"""
TOKENS = 8
PROMPT = "".join(f"{number} apples, " for number in range(200))[:700]  # a token a byte


async def cache(served: Served, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run ``bramley cache`` to its end."""
    command = [sys.executable, "-P", "-m", "bramley.client"]
    command += ["--state-dir", str(served.cluster.state_dir), "cache", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, check=False, capture_output=True, text=True, timeout=60
    )


async def told(served: Served, *arguments: str) -> str:
    """Run ``bramley cache``, which should end well: what it prints."""
    ended = await cache(served, *arguments)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


async def ask(served: Served, session: str = "") -> Completion:
    return await served.completed("one", PROMPT, max_tokens=TOKENS, session_key=session)


def cached(completion: Completion) -> int:
    return sum(completion.usage.cached_tokens.values())


async def until_cached(served: Served) -> Completion:
    """Ask until all but one token come from the store: publishing is not waited for."""
    while True:
        completion = await ask(served, "talk")
        if cached(completion) == len(PROMPT) - 1:
            return completion
        await asyncio.sleep(0.05)


async def test_a_cache_is_looked_into_thinned_out_and_moved_to_another_machine(
    tmp_path: Path,
) -> None:
    file = tmp_path / "talk.tar"
    async with serving(tmp_path / "here", lambda models: SETTINGS.format(models=models)) as here:
        cold = await ask(here, "talk")
        assert cached(cold) == 0
        assert (await here.cluster.within(until_cached(here))).token_ids == cold.token_ids
        assert (await told(here, "flush")).endswith("tokens\n")

        listed = json.loads(await told(here, "list", "--json", "--session", "talk"))
        objects = listed["objects"]
        assert not listed["more"]
        assert {one["model"] for one in objects} == {"one"}
        assert {one["promise"] for one in objects} <= {"spilled", "flushed"}
        assert max(one["end_token"] for one in objects) >= len(PROMPT) - 1
        assert objects[0]["short_id"] in await told(here, "list", "--model", "one")

        assert "pinned for 1h" in await told(here, "pin", "--session", "talk", "--for", "1h")
        kept = await cache(here, "evict", "--all", "--yes")
        assert kept.returncode == 1
        assert f"{len(objects)} objects kept: {len(objects)} pinned" in kept.stderr
        assert cached(await ask(here)) == len(PROMPT) - 1

        assert await told(here, "scrub") == f"{len(objects)} files are whole\n"
        exported = await told(here, "export", str(file), "--session", "talk")
        assert exported.startswith(f"{len(objects)} objects in {file}")
        await told(here, "unpin", "--session", "talk")
        evicted = await told(here, "evict", "--model", "one", "--yes")
        assert evicted.startswith(f"{len(objects)} objects evicted")
        assert cached(await ask(here)) == 0

    async with serving(tmp_path / "there", lambda models: SETTINGS.format(models=models)) as there:
        assert json.loads(await told(there, "list", "--json"))["objects"] == []
        imported = await told(there, "import", str(file))
        assert imported.startswith(f"{len(objects)} objects taken in")
        warm = await ask(there, "talk")
        assert (cached(warm), warm.token_ids) == (len(PROMPT) - 1, cold.token_ids)
