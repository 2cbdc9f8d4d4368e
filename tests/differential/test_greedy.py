"""Greedy tokens: alone, in a batch, in chunks and by mlx-lm's own loop are the same tokens.

float32 on the CPU with a BLAS whose rows do not depend on the batch, so equality is exact.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from mlx import nn

from bramley.worker.models.mlx_lm import layer_caches
from support import architectures, forwards
from support.engines import InProcessEngine, request
from support.tiny_models import build, greedy

LENGTHS = (1, 2, 3, 7, 8, 9, 20, 33)


@pytest.fixture(scope="module", params=["full", "sliding", "hybrid"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param, seed=5)


@pytest.fixture
def engine(model: nn.Module) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model, layers=layer_caches(model))
    yield made
    made.close()


def prompts(seed: int = 1) -> dict[str, list[int]]:
    """Prompts of many lengths, each with a byte of its own in it."""
    random = np.random.default_rng(seed)
    made: dict[str, list[int]] = {}
    for marker, length in enumerate(LENGTHS):
        ids = [int(token) for token in random.integers(0, 200, length)]
        ids[length // 2] = 200 + marker
        made[f"{length} tokens"] = ids
    return made


@pytest.fixture(scope="module")
def oracle(model: nn.Module) -> dict[str, list[int]]:
    """mlx-lm's own loop, each prompt alone and cold."""
    tokens = {name: greedy(model, prompt, 24) for name, prompt in prompts().items()}
    assert len({tuple(answer) for answer in tokens.values()}) == len(tokens), "answers differ"
    return tokens


def test_b011_alone_equals_mlx_lm(engine: InProcessEngine, oracle: dict[str, list[int]]) -> None:
    for name, prompt in prompts().items():
        assert engine.run(request(name, prompt, max_tokens=24))[name] == oracle[name]


@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_a_prompt_in_chunks_equals_the_whole(
    model: nn.Module, oracle: dict[str, list[int]], chunk: int
) -> None:
    engine = InProcessEngine(model, layers=layer_caches(model), chunk_tokens=chunk)
    together = [request(name, prompt, max_tokens=24) for name, prompt in prompts().items()]
    assert engine.run(*together) == oracle
    engine.close()


def test_a_prompt_that_goes_on_gives_the_rest_of_the_answer(
    engine: InProcessEngine, oracle: dict[str, list[int]]
) -> None:
    extended = [*prompts()["20 tokens"], *oracle["20 tokens"][:8]]
    assert engine.run(request("on", extended, max_tokens=16))["on"] == oracle["20 tokens"][8:]


def test_more_requests_than_rows_wait_their_turn(
    model: nn.Module, oracle: dict[str, list[int]]
) -> None:
    engine = InProcessEngine(model, layers=layer_caches(model), max_rows=3)
    together = [request(name, prompt, max_tokens=24) for name, prompt in prompts().items()]
    assert engine.run(*together) == oracle
    engine.close()


def test_rows_grow_past_their_first_room(model: nn.Module) -> None:
    engine = InProcessEngine(model, layers=layer_caches(model))
    long = [int(token) for token in np.random.default_rng(3).integers(0, 256, 250)]
    answers = engine.run(
        request("long", long, max_tokens=40), request("short", [5, 6], max_tokens=40)
    )
    assert answers == {"long": greedy(model, long, 40), "short": greedy(model, [5, 6], 40)}
    engine.close()


def test_rows_longer_than_a_panel_of_the_blas_give_equal_bits_alone_and_together() -> None:
    model = architectures.build("llama")
    random = np.random.default_rng(4)
    texts = [random.integers(0, 250, count).tolist() for count in (200, 383, 385, 500, 700, 900)]

    def last_logits(*rows: list[int]) -> list[forwards.Logits]:
        made = forwards.Rows(model)
        for row in rows:
            made.feed([row[:-1]], first=made.join())
        return [logits[-1] for logits in made.feed([row[-1:] for row in rows])]

    together = last_logits(*texts)
    for text, logits in zip(texts, together, strict=True):
        np.testing.assert_array_equal(last_logits(text)[0], logits)
