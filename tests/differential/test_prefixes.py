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


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_b016_the_same_prompt_again_gives_the_same_answer(
    engine: InProcessEngine, model: nn.Module, length: int
) -> None:
    prompt = random_prompt(length)
    can_go_back = all(layer.kind != "recurrent" for layer in layer_caches(model))
    expected = greedy(model, prompt, 4)
    for name in ("once", "twice", "thrice"):
        assert engine.run(request(name, prompt, max_tokens=4, scope=SCOPE))[name] == expected
    together = [request(f"copy {n}", prompt, max_tokens=4, scope=SCOPE) for n in range(4)]
    assert set(map(tuple, engine.run(*together).values())) == {tuple(expected)}
    reused = [engine.outcomes[name].parked for name in ("twice", "thrice", "copy 0")]
    # One token is always computed; and a row that went on cannot go back to the prompt's end.
    assert reused == [length - 1 if length > 1 and can_go_back else 0] * 3


@pytest.mark.parametrize("length", [2, 40, BLOCK + 1])
def test_b020_several_answers_start_from_copies_of_one_prompt(
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


def test_b013_rows_join_one_whose_window_has_wrapped_and_all_are_reused(
    engine: InProcessEngine, model: nn.Module
) -> None:
    prompts = {f"{length} tokens": random_prompt(length, length) for length in (20, 1, 7, 8, 9, 17)}
    expected = {name: greedy(model, prompt, 24) for name, prompt in prompts.items()}
    first, *later = [
        request(name, prompt, max_tokens=24, scope=SCOPE) for name, prompt in prompts.items()
    ]
    engine.at_step[6] = lambda: engine.submit(*later)
    engine.submit(first)
    engine.until(lambda: len(engine.outcomes) == len(prompts))
    answers = {name: outcome.tokens for name, outcome in engine.finished().items()}
    assert answers == expected

    following = {name: [*prompts[name], *answers[name], 5, 6, 7] for name in prompts}
    turns = [request(name, ids, max_tokens=24, scope=SCOPE) for name, ids in following.items()]
    assert engine.run(*turns) == {name: greedy(model, following[name], 24) for name in prompts}
    for name, prompt in prompts.items():
        assert engine.outcomes[name].parked == len(prompt) + 23
