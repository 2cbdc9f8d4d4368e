"""Rows whose tokens are guided, beside others: right, as alone, and ended alone."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Unpack

import numpy as np
import pytest

from bramley.common.errors import EngineFault
from bramley.protos.v1 import types_pb2
from bramley.worker.engine.stopping import Finish
from bramley.worker.grammar.compiler import Compiler
from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.vocabulary import Vocabulary
from bramley.worker.grammar.words import Words
from bramley.worker.models.contract import LanguageModel
from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.request import LogprobRule, Priority, Request
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.text.tokenizer import Tokenizer
from support.byte_tokenizer import EOS
from support.engines import InProcessEngine, More, oracle, request
from support.tiny_models import build, save_tiny

PROMPT = [10, 20, 30, 40]
NUMBER = types_pb2.Constraint(regex="[0-9]{3}-[0-9]{4}")
LETTERS = types_pb2.Constraint(regex="[a-z]{40,}")
OBJECT = types_pb2.Constraint(
    json_schema=json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    )
)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    folder = tmp_path_factory.mktemp("bytes")
    save_tiny(folder, "full", seed=5)
    made = Compiler(Vocabulary(Tokenizer(load_tokenizer(folder))))
    yield made
    made.close()


@pytest.fixture
def engine(model: LanguageModel) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model)
    yield made
    made.close()


def guided(
    name: str,
    compiler: Compiler,
    constraint: types_pb2.Constraint,
    *,
    seed: int = 1,
    temperature: float = 1.0,
    max_tokens: int = 60,
    **more: Unpack[More],
) -> Request:
    compiled = asyncio.run(compiler.constraint(constraint))
    more["sampling"] = SamplingParams(temperature=temperature, seed=seed)
    made = request(name, PROMPT, max_tokens=max_tokens, eos=frozenset({EOS}), **more)
    made.guide = Guide(compiler.vocabulary, [EOS], compiled)
    return made


def text(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode()


def test_a_guided_row_keeps_to_its_grammar_and_ends_with_it(
    engine: InProcessEngine, compiler: Compiler
) -> None:
    for seed in range(4):
        name = f"n{seed}"
        tokens = engine.run(guided(name, compiler, NUMBER, seed=seed))[name]
        assert re.fullmatch("[0-9]{3}-[0-9]{4}", text(tokens))
        assert engine.outcomes[name].finish == Finish("grammar")


def test_rows_without_a_grammar_draw_what_they_draw_alone(
    model: LanguageModel, engine: InProcessEngine, compiler: Compiler
) -> None:
    free = SamplingParams(temperature=1.0, top_p=0.9, seed=3)
    alone = oracle(model, request("free", PROMPT, sampling=free, max_tokens=40))
    greedy = oracle(model, request("greedy", PROMPT, max_tokens=40))
    together = engine.run(
        guided("a", compiler, NUMBER, seed=1),
        request("free", PROMPT, sampling=free, max_tokens=40),
        guided("b", compiler, OBJECT, seed=2),
        request("greedy", PROMPT, max_tokens=40),
    )
    assert together["free"] == alone
    assert together["greedy"] == greedy
    assert json.loads(text(together["b"])).keys() == {"a", "b"}


def test_a_guided_row_draws_in_a_batch_what_it_draws_alone(
    model: LanguageModel, engine: InProcessEngine, compiler: Compiler
) -> None:
    alone = [
        oracle(model, guided(f"{seed}", compiler, OBJECT, seed=seed, temperature=temperature))
        for seed, temperature in enumerate((0.0, 1.0, 1.0))
    ]
    together = engine.run(
        *[
            guided(f"{seed}", compiler, OBJECT, seed=seed, temperature=temperature)
            for seed, temperature in enumerate((0.0, 1.0, 1.0))
        ],
        request("free", PROMPT, max_tokens=50),
    )
    assert [together[f"{seed}"] for seed in range(3)] == alone
    for tokens in alone:
        assert json.loads(text(tokens))["b"] in {"x", "y"}


def test_a_guided_row_that_lost_its_seat_goes_on_where_it_was(
    model: LanguageModel, compiler: Compiler
) -> None:
    def bulk() -> Request:
        return guided("bulk", compiler, LETTERS, max_tokens=60, priority=Priority.BULK)

    expected = oracle(model, bulk())
    engine = InProcessEngine(model, max_rows=1)
    engine.at_step[10] = lambda: engine.submit(
        request("urgent", [1, 2], max_tokens=3, priority=Priority.INTERACTIVE)
    )
    engine.submit(bulk())
    engine.until(lambda: "urgent" in engine.outcomes)
    assert engine.finished()["bulk"].tokens == expected
    assert engine.outcomes["bulk"].preempted == 1
    assert re.fullmatch("[a-z]{40,}", text(expected))
    engine.close()


def test_log_probabilities_are_the_model_s_own_whatever_the_grammar_forbids(
    engine: InProcessEngine, compiler: Compiler
) -> None:
    row = guided("row", compiler, NUMBER, logprobs=LogprobRule(top=3))
    engine.run(row)
    outcome = engine.outcomes["row"]
    assert len(outcome.logprobs) == len(outcome.tokens) == 8
    assert any(
        token not in one.top_ids
        for token, one in zip(outcome.tokens, outcome.logprobs, strict=True)
    )
    assert all(-9999.0 <= one.logprob <= 0.0 for one in outcome.logprobs)


def test_a_grammar_stands_over_bans_and_bias(engine: InProcessEngine, compiler: Compiler) -> None:
    seven = types_pb2.Constraint(regex="7{5}")
    row = guided("row", compiler, seven)
    row.sampling = SamplingParams(
        temperature=1.0, logit_bias=((ord("7"), -100.0),), bad_words=((ord("7"),),)
    )
    assert text(engine.run(row)["row"]) == "77777"


def test_an_end_token_comes_only_where_the_grammar_may_end(
    engine: InProcessEngine, compiler: Compiler
) -> None:
    digits = types_pb2.Constraint(regex="[0-9]{5,}")
    row = guided("row", compiler, digits, max_tokens=30)
    row.sampling = SamplingParams(temperature=1.0, logit_bias=((EOS, 100.0),), seed=1)
    tokens = engine.run(row)["row"]
    assert tokens[-1] == EOS
    assert re.fullmatch("[0-9]{5}", text(tokens))
    assert engine.outcomes["row"].finish == Finish("stop", EOS)


def test_a_guide_that_fails_ends_its_own_row_alone(
    model: LanguageModel,
    engine: InProcessEngine,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Guide.mask

    def mask(guide: Guide, into: Words) -> None:
        whole(guide, into)
        if guide is failing.guide and len(failing.output) == 3:
            guide.error = EngineFault("constraint: it broke")
            into[:] = np.uint32(0xFFFFFFFF)

    monkeypatch.setattr(Guide, "mask", mask)
    failing = guided("failing", compiler, LETTERS)
    alone = oracle(model, guided("other", compiler, OBJECT, seed=2))
    engine.submit(failing, guided("other", compiler, OBJECT, seed=2))
    engine.finished()
    assert isinstance(engine.outcomes["failing"].error, EngineFault)
    assert len(engine.outcomes["failing"].tokens) == 3
    assert engine.outcomes["other"].tokens == alone


def test_a_token_that_no_guide_allowed_is_not_told(
    engine: InProcessEngine, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Guide.mask

    def mask(guide: Guide, into: Words) -> None:
        whole(guide, into)
        if len(row.output) == 3:
            into[:] = 0
            into[ord("A") >> 5] = 1 << (ord("A") & 31)

    monkeypatch.setattr(Guide, "mask", mask)
    row = guided("row", compiler, LETTERS)
    engine.submit(row)
    engine.finished()
    assert isinstance(engine.outcomes["row"].error, EngineFault)
    assert len(engine.outcomes["row"].tokens) == 3
