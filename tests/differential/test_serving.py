"""Every architecture through the engine gives the tokens of mlx-lm's own loop.

Alone, together, on a parked row, on a copied one and on a restored one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from mlx import nn

from bramley.worker.models.mlx_lm import layer_caches
from bramley.worker.request import Request
from bramley.worker.sampling.params import SamplingParams
from support.architectures import NAMES, VOCABULARY, build
from support.engines import InProcessEngine, request
from support.shelf import Shelf
from support.tiny_models import greedy

LENGTHS = (1, 3, 12, 70)  # the last is more than a sliding layer has room for
TOKENS = 12
SCOPE = b"one namespace"


@dataclass(frozen=True)
class Served:
    """A model, an engine that serves it, and what mlx-lm's loop answers to each prompt."""

    name: str
    model: nn.Module
    engine: InProcessEngine
    prompts: dict[str, list[int]]
    answers: dict[str, list[int]]


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    model = build(request.param)
    random = np.random.default_rng(2)
    prompts = {
        f"{length} tokens": [int(token) for token in random.integers(0, VOCABULARY, length)]
        for length in LENGTHS
    }
    answers = {name: greedy(model, prompt, TOKENS) for name, prompt in prompts.items()}
    engine = InProcessEngine(model, layers=layer_caches(model), chunk_tokens=8)
    yield Served(request.param, model, engine, prompts, answers)
    engine.close()


def test_b011_alone_equals_mlx_lm_s_loop(served: Served) -> None:
    for name, prompt in served.prompts.items():
        alone = served.engine.run(request(name, prompt, max_tokens=TOKENS))
        assert alone[name] == served.answers[name]


def test_b011_together_equals_mlx_lm_s_loop(served: Served) -> None:
    together = [request(name, ids, max_tokens=TOKENS) for name, ids in served.prompts.items()]
    assert served.engine.run(*together) == served.answers


def test_a_parked_row_goes_on_as_a_cold_one(served: Served) -> None:
    first, again = served.prompts["70 tokens"], served.prompts["12 tokens"]
    turn = request("first", first, max_tokens=TOKENS, scope=SCOPE)
    answer = served.engine.run(turn)["first"]
    following = [*first, *answer, *again]
    warm = request("second", following, max_tokens=TOKENS, scope=SCOPE)
    assert served.engine.run(warm)["second"] == greedy(served.model, following, TOKENS)
    assert served.engine.outcomes["second"].parked == len(first) + TOKENS - 1
    # From the middle of what is parked now.
    shorter = [*first, *answer[:6], *again]
    back = request("third", shorter, max_tokens=TOKENS, scope=SCOPE)
    assert served.engine.run(back)["third"] == greedy(served.model, shorter, TOKENS)
    assert served.engine.outcomes["third"].parked == len(first) + 6


def test_several_answers_to_one_prompt_equal_each_alone(served: Served) -> None:
    prompt = served.prompts["70 tokens"]

    def asked(seed: int, leader: Request | None = None) -> Request:
        sampling = SamplingParams(temperature=1.0, seed=seed)
        return request(f"seed {seed}", prompt, max_tokens=TOKENS, sampling=sampling, leader=leader)

    alone: dict[str, list[int]] = {}
    for seed in range(3):
        alone |= served.engine.run(asked(seed))
    leader = asked(0)
    before = served.engine.engine.counters.prompt_tokens
    assert served.engine.run(leader, asked(1, leader), asked(2, leader)) == alone
    computed = served.engine.engine.counters.prompt_tokens - before
    assert computed < 2 * len(prompt)
    assert len({tuple(answer) for answer in alone.values()}) > 1


def test_a_restored_row_goes_on_as_a_cold_one(served: Served) -> None:
    engine, prompt = served.engine, served.prompts["70 tokens"]
    shelf = Shelf(engine.cohort)
    saver = request("saver", prompt, max_tokens=16)
    saver.saving = shelf.saving(boundary=len(prompt) - 1)
    following = [*prompt, *engine.run(saver)["saver"]]
    shelf.saved = engine.outcomes["saver"].saved
    warm = request("warm", following, max_tokens=TOKENS)
    warm.restore = shelf.lend(len(following) - 1)
    assert engine.run(warm)["warm"] == greedy(served.model, following, TOKENS)
    assert engine.outcomes["warm"].restored == len(following) - 1
