"""Prefixes shared through the store by real workers: the answer never changes, the work does."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from bramley.client.events import Completion
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import Served, serving

TOKENS = 8

SETTINGS = """
[models.one]
path = "{models}/tiny"
parked_bytes = 0  # what is shown is the store
[models.two]
path = "{models}/tiny"
parked_bytes = 0  # what is shown is the store
[models.other]
path = "{models}/script"
parked_bytes = 0  # what is shown is the store
[models.sliding]
path = "{models}/sliding"
parked_bytes = 0  # what is shown is the store
[store]
ram_bytes = 200000000
disk_bytes = 400000000
"""


@pytest.fixture(scope="module")
async def stored(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """Two workers of one model, one of another, and a store."""
    folder = tmp_path_factory.mktemp("stored")
    async with serving(folder, lambda models: SETTINGS.format(models=models)) as made:
        yield made


def prompt(name: str, tokens: int) -> str:
    """A prompt of so many tokens (bytes) that no other test uses."""
    text = f"{name}: "
    while len(text) < tokens:
        text += f"{len(text)} apples, "
    return text[:tokens]


def cached(completion: Completion) -> int:
    return sum(completion.usage.cached_tokens.values())


async def until_cached(ask: Callable[[], Awaitable[Completion]], tokens: int) -> Completion:
    """Ask until so many tokens come from the store: publishing is not waited for."""
    while True:
        completion = await ask()
        if cached(completion) >= tokens:
            return completion
        await asyncio.sleep(0.05)


async def test_b016_the_same_prompt_again_computes_one_token(stored: Served) -> None:
    text = prompt("again", 700)
    cold = await stored.completed("one", text, max_tokens=TOKENS)
    assert cached(cold) == 0
    warm = await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 699)
    )
    assert (cached(warm), warm.token_ids) == (699, cold.token_ids)
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens == 700


@pytest.mark.parametrize("shared", [256, 512, 300, 511, 513, 690])
async def test_a_shared_beginning_is_taken_to_the_token_at_block_edges_and_off_them(
    stored: Served, shared: int
) -> None:
    text = prompt(f"shared {shared}", 700)
    first = await stored.completed("one", text, max_tokens=TOKENS)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 699)
    )
    other = text[:shared] + "#" + prompt("end", 120)
    cold = await _without_lookup(stored, "one", other)
    warm = await stored.completed("one", other, max_tokens=TOKENS)
    assert cached(warm) == shared
    assert warm.token_ids == cold
    assert first.usage.prompt_tokens == 700


async def test_two_workers_of_one_model_hit_each_other_s_prefixes(stored: Served) -> None:
    text = prompt("two workers", 600)
    first = await stored.completed("one", text, max_tokens=TOKENS)
    second = await stored.cluster.within(
        until_cached(lambda: stored.completed("two", text, max_tokens=TOKENS), 599)
    )
    assert second.token_ids == first.token_ids


async def test_b022_another_model_never_gets_a_prefix(stored: Served) -> None:
    text = prompt("two models", 600)
    await stored.completed("one", text, max_tokens=TOKENS)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 599)
    )
    assert cached(await stored.completed("other", text, max_tokens=TOKENS)) == 0


async def test_another_salt_never_gets_a_prefix(stored: Served) -> None:
    text = prompt("salts", 600)
    await stored.completed("one", text, max_tokens=TOKENS)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 599)
    )
    assert await _cached_with(stored, text, types_pb2.CacheHints(salt="a")) == 0
    assert await _cached_with(stored, text, types_pb2.CacheHints(skip_lookup=True)) == 0
    assert await _cached_with(stored, text, types_pb2.CacheHints()) == 599


async def test_the_next_turn_starts_where_the_answer_ended(stored: Served) -> None:
    text = prompt("turns", 400)
    first = await stored.completed("one", text, max_tokens=100)
    following = [*text.encode(), *first.token_ids, *b" and then?"]
    hints = types_pb2.CacheHints(skip_store=True)

    async def found() -> int:
        _, usage = await _generate(stored, "two", following, hints)
        return usage.cached.ram

    async def wait() -> int:
        while (tokens := await found()) < 499:  # noqa: ASYNC110 another process publishes
            await asyncio.sleep(0.05)
        return tokens

    # The last token's own state was never written.
    assert await stored.cluster.within(wait()) == 499


async def test_b026_b028_after_a_restart_and_damage_answers_stay_right(stored: Served) -> None:
    text = prompt("restart", 700)
    cold = await stored.completed("one", text, max_tokens=TOKENS)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 699)
    )
    await _flushed(stored)
    killed = await stored.cluster.kill("store", "store")
    await stored.cluster.running("store", "store", after=killed.epoch)
    # What was in RAM is gone, and nothing new is stored: it comes from the disk. By way of RAM, if
    # it was read too late for who asked first.
    from_disk = await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS, skip_store=True), 699)
    )
    assert from_disk.token_ids == cold.token_ids

    killed = await stored.cluster.kill("store", "store")
    for file in stored.cluster.state_dir.rglob("*.kvx"):
        content = bytearray(file.read_bytes())
        content[-1000] ^= 1
        file.write_bytes(content)
    await stored.cluster.running("store", "store", after=killed.epoch)
    for _ in range(3):
        again = await stored.completed("one", text, max_tokens=TOKENS)
        assert again.token_ids == cold.token_ids


async def test_a_store_that_is_stopped_or_dead_costs_one_bounded_wait(stored: Served) -> None:
    text = prompt("stopped", 300)
    cold = await stored.completed("one", text, max_tokens=TOKENS)
    stopped = await stored.cluster.kill("store", "store", signal.SIGSTOP)
    slow = await stored.completed("one", text, max_tokens=TOKENS)
    assert slow.token_ids == cold.token_ids
    assert slow.timings.ttft_s < 3.0
    await stored.cluster.kill("store", "store", signal.SIGCONT)
    killed = await stored.cluster.kill("store", "store")
    assert killed.pid == stopped.pid
    during = await stored.completed("one", text, max_tokens=TOKENS)
    assert during.token_ids == cold.token_ids
    await stored.cluster.running("store", "store", after=killed.epoch)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("one", text, max_tokens=TOKENS), 299)
    )


async def test_a_worker_s_death_loses_nothing_that_was_published(stored: Served) -> None:
    text = prompt("worker dies", 700)
    cold = await stored.completed("two", text, max_tokens=TOKENS)
    await stored.cluster.within(
        until_cached(lambda: stored.completed("two", text, max_tokens=TOKENS), 699)
    )
    await stored.cluster.kill("worker", "two")
    warm = await stored.cluster.within(
        until_cached(lambda: stored.completed("two", text, max_tokens=TOKENS), 699)
    )
    assert warm.token_ids == cold.token_ids


async def test_a_sliding_window_s_state_outlives_its_worker(stored: Served) -> None:
    text = prompt("window", 700)
    cold = await stored.completed("sliding", text, max_tokens=TOKENS)
    assert cached(cold) == 0
    await stored.cluster.within(
        until_cached(lambda: stored.completed("sliding", text, max_tokens=TOKENS), 699)
    )
    killed = await stored.cluster.kill("worker", "sliding")
    await stored.cluster.running("worker", "sliding", after=killed.epoch)
    await stored.ready("sliding")
    warm = await stored.completed("sliding", text, max_tokens=TOKENS)
    assert (cached(warm), warm.token_ids) == (699, cold.token_ids)
    # No state was kept where another prompt parts from it.
    other = text[:500] + "#" + prompt("end", 120)
    parted = await stored.completed("sliding", other, max_tokens=TOKENS)
    assert cached(parted) == 0
    assert parted.token_ids == await _without_lookup(stored, "sliding", other)


async def _without_lookup(stored: Served, model: str, text: str) -> list[int]:
    alone = types_pb2.CacheHints(skip_lookup=True, skip_store=True)
    ids, _ = await _generate(stored, model, text, alone)
    return ids


async def _cached_with(stored: Served, text: str, hints: types_pb2.CacheHints) -> int:
    _, usage = await _generate(stored, "one", text, hints)
    return usage.cached.ram + usage.cached.ssd


async def _generate(
    stored: Served, model: str, prompt: str | Sequence[int], hints: types_pb2.CacheHints
) -> tuple[list[int], types_pb2.Usage]:
    ids_in = list(prompt.encode()) if isinstance(prompt, str) else prompt
    request = generation_pb2.GenerateRequest(
        model=model,
        token_ids=types_pb2.TokenIds(ids=ids_in),
        sampling=types_pb2.SamplingParams(temperature=0.0),
        stop=types_pb2.StopConditions(max_tokens=TOKENS),
        cache=hints,
    )
    ids: list[int] = []
    usage = types_pb2.Usage()
    async with open_channel(stored.cluster.node.addresses["grpc"]) as channel:
        async for response in RouterServiceStub(channel).Generate(request):
            ids.extend(response.delta.token_ids)
            if response.HasField("finished"):
                usage = response.finished.usage
    return ids, usage


async def _flushed(stored: Served) -> None:
    answer = await stored.client.flush_cache()
    assert answer.ok
