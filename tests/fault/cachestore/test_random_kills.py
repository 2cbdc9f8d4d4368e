"""Store and workers are killed at random under load: nothing wrong, lost, held or left over."""

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pytest

from support import store_load
from support.store import (
    PATIENCE_S,
    StoreChild,
    Worker,
    ids,
    settings,
    store_child,
    until,
    worker,
)

SCRIPT = Path(store_load.__file__)
CHECKED = 4  # prompts read after each kill of the store
WORKERS = 2


class Load:
    """A worker in a process of its own, and what it said.

    Attributes:
        promises: how many flushes it has told of.
        told: the longest flushed prompts, by number; shared by all.
        wrong: what was found wrong.
    """

    def __init__(self, told: dict[int, int], wrong: list[str]) -> None:
        self.promises = 0
        self._told = told
        self._wrong = wrong
        self._process: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]

    async def start(self, target: str, seed: int) -> None:
        """Start it, and do not wait."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(SCRIPT), target, str(seed)),
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(SCRIPT.parents[1])},
        )
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode()
            if text.startswith("+") and text.endswith("\n"):
                self.promises += 1
                prompt, tokens = map(int, text[1:].split())
                self._told[prompt] = max(self._told.get(prompt, 0), tokens)
            elif text.startswith("!"):
                self._wrong.append(text)

    async def kill(self) -> None:
        """Kill it, and hear it out."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening


async def check(child: StoreChild, one: Worker, told: dict[int, int], prompts: list[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await one.client.linked()
    for prompt in prompts:
        restored = await one.read(ids(store_load.TOKENS_MAX + 1, prompt))
        assert restored >= told[prompt], f"prompt {prompt} is lost\n{child.log.read_text()}"


async def one_more_promise(loads: list[Load]) -> None:
    """Wait until the workers are at it again."""
    before = sum(load.promises for load in loads)
    await until(lambda: sum(load.promises for load in loads) > before)


async def kill_at_random(folder: Path, kills: int, seed: int) -> None:
    """Kill so often; look at a few prompts after each kill of the store, and at all in the end."""
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)  # noqa: S311
    chosen = settings(folder=str(folder / "disk"))
    told: dict[int, int] = {}
    wrong: list[str] = []
    loads = [Load(told, wrong) for _ in range(WORKERS)]
    async with store_child(folder) as child:
        await child.start(chosen)
        for load in loads:
            await load.start(child.target, chance.randrange(1 << 30))
        async with worker(child.target) as one:
            for _ in range(kills):
                await one_more_promise(loads)
                await asyncio.sleep(chance.uniform(0, 0.3))  # the moment is what is tried
                victim = chance.choice([None, None, *loads])
                if victim is not None:
                    await victim.kill()
                    await victim.start(child.target, chance.randrange(1 << 30))
                    continue
                await child.kill()
                await child.start(chosen)
                some = chance.sample(sorted(told), min(CHECKED, len(told)))
                await check(child, one, told, some)
                assert not wrong
            for load in loads:
                await load.kill()
            await check(child, one, told, sorted(told))
            counts = await one.idle()
        await child.stop()
    assert not wrong
    assert not counts.get("corrupt")
    ended = sum(counts.get(end, 0) for end in ("sealed", "aborted", "expired"))
    assert counts.get("reserved", 0) == ended
    assert not list((folder / "disk" / "quarantine").iterdir())
    print(f"{kills} kills, {len(told)} prompts flushed")  # noqa: T201


async def test_a_few_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    await kill_at_random(tmp_path, 6, seed=random.randrange(1 << 30))  # noqa: S311


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_hundred_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    await kill_at_random(tmp_path, 200, seed=random.randrange(1 << 30))  # noqa: S311


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
async def test_five_thousand_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    await kill_at_random(tmp_path, 5000, seed=random.randrange(1 << 30))  # noqa: S311
