"""Prompts that begin as others did: the same answer as cold, whatever was reused."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from mlx import nn

from bramley.cachestore.objects import BLOCK
from bramley.worker.models.mlx_lm import layer_caches
from support.engines import InProcessEngine, request
from support.tiny_models import Kind, build, greedy

SCOPE = b"one namespace"


@pytest.fixture(scope="module", params=["full", "sliding", "hybrid"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param, seed=5)


@pytest.fixture
def engine(model: nn.Module) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model, layers=layer_caches(model))
    yield made
    made.close()


def random_prompt(length: int, seed: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


@pytest.mark.parametrize("length", [2, 40, BLOCK + 1])
def test_several_answers_start_from_copies_of_one_prompt(
    engine: InProcessEngine, model: nn.Module, length: int
) -> None:
    prompt = random_prompt(length)
    first = request("0", prompt, max_tokens=6)
    others = [request(str(n), prompt, max_tokens=6, leader=first) for n in range(1, 4)]
    answers = engine.run(first, *others)
    assert set(map(tuple, answers.values())) == {tuple(greedy(model, prompt, 6))}
    assert [engine.outcomes[str(n)].parked for n in range(4)] == [0, *[length - 1] * 3]


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_the_next_turn_goes_on_from_the_row_of_the_last(kind: Kind) -> None:
    model = build(kind, seed=5)
    with closing(InProcessEngine(model, layers=layer_caches(model))) as engine:
        prompt = random_prompt(60)
        said = engine.run(request("turn", prompt, max_tokens=9, scope=SCOPE))["turn"]
        longer = [*prompt, *said, *random_prompt(20, 8)]
        got = engine.run(request("next", longer, max_tokens=9, scope=SCOPE))["next"]
        assert got == greedy(model, longer, 9)
        assert engine.outcomes["next"].parked == len(prompt) + len(said) - 1
