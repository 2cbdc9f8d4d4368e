"""Models of every lane, served whole: right together, alone, again, and after a crash."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from bramley.client.events import Completion
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import ZOO, Served, serving

TOKENS = 12
BATCHED, SERIAL = types_pb2.LANE_BATCHED, types_pb2.LANE_SERIAL
LANES = {
    "hybrid": BATCHED,
    "mamba2": BATCHED,
    "jamba": BATCHED,
    "recurrent_gemma": SERIAL,
    "llama4": SERIAL,
}
STORED = [name for name in LANES if name != "llama4"]  # which runs on its own caches
PROMPTS = ["x", "ab", "apples and pears", "the quick brown fox jumps over the lazy dog " * 3]

SETTINGS = "".join(
    f"""
[models.{name}]
path = "{{models}}/{name}"
parked_bytes = 0
"""
    for name in ("hybrid", *ZOO)
)


@pytest.fixture(scope="module")
async def lanes(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """A worker of each."""
    folder = tmp_path_factory.mktemp("lanes")
    async with serving(folder, lambda models: SETTINGS.format(models=models)) as made:
        yield made


async def asked(served: Served, model: str, prompt: str, salt: str = "") -> Completion:
    return await served.completed(model, prompt, max_tokens=TOKENS, ignore_eos=True, salt=salt)


async def until_cached(served: Served, model: str, prompt: str, tokens: int) -> Completion:
    while True:
        completion = await asked(served, model, prompt)
        if sum(completion.usage.cached_tokens.values()) >= tokens:
            return completion
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("model", LANES)
async def test_b012_answers_together_are_those_alone(lanes: Served, model: str) -> None:
    alone = [await asked(lanes, model, prompt, "alone") for prompt in PROMPTS]
    together = await asyncio.gather(
        *(asked(lanes, model, prompt, f"together {n}") for n in range(2) for prompt in PROMPTS)
    )
    tokens = [one.token_ids for one in alone]
    assert [one.token_ids for one in together] == tokens * 2
    assert len(set(map(tuple, tokens))) == len(PROMPTS)


@pytest.mark.parametrize("model", LANES)
async def test_an_answer_says_in_which_lane_it_was_made(lanes: Served, model: str) -> None:
    request = generation_pb2.GenerateRequest(
        model=model, text="lane", stop=types_pb2.StopConditions(max_tokens=2)
    )
    async with open_channel(lanes.cluster.node.addresses["grpc"]) as channel:
        stub = RouterServiceStub(channel)
        told = [response async for response in stub.Generate(request)]
    assert told[-1].finished.lane == LANES[model]


@pytest.mark.parametrize("model", STORED)
async def test_b016_what_is_stored_gives_the_answer_of_the_cold_row(
    lanes: Served, model: str
) -> None:
    prompt = f"{model} again: " + "apples and pears, " * 40
    cold = await asked(lanes, model, prompt)
    assert not sum(cold.usage.cached_tokens.values())
    size = cold.usage.prompt_tokens
    warm = await lanes.cluster.within(until_cached(lanes, model, prompt, size - 1))
    assert warm.token_ids == cold.token_ids
    longer = prompt + "and plums"
    cold = await asked(lanes, model, longer, "fresh")
    warm = await asked(lanes, model, longer)
    assert warm.token_ids == cold.token_ids
    assert sum(warm.usage.cached_tokens.values()) >= size - 1


async def test_models_on_their_own_caches_store_nothing_and_answer_again(lanes: Served) -> None:
    prompt = "own caches: " + "apples and pears, " * 40
    answers = [await asked(lanes, "llama4", prompt) for _ in range(3)]
    assert len({tuple(one.token_ids) for one in answers}) == 1
    assert not any(sum(one.usage.cached_tokens.values()) for one in answers)


async def test_a_hybrid_s_state_outlives_its_worker(lanes: Served) -> None:
    prompt = "crash: " + "apples and pears, " * 40
    cold = await asked(lanes, "hybrid", prompt)
    await lanes.cluster.within(until_cached(lanes, "hybrid", prompt, cold.usage.prompt_tokens - 1))
    killed = await lanes.cluster.kill("worker", "hybrid")
    await lanes.cluster.running("worker", "hybrid", after=killed.epoch)
    await lanes.ready("hybrid")
    warm = await lanes.cluster.within(
        until_cached(lanes, "hybrid", prompt, cold.usage.prompt_tokens - 1)
    )
    assert warm.token_ids == cold.token_ids
