"""What the engine is asked to run for a request."""

from typing import Any

import pytest

from bramley.common.wire import pack_ids
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.worker import translate
from bramley.worker.intake import ModelFacts
from bramley.worker.request import LogprobRule, Priority, Request

FACTS = ModelFacts(
    context_tokens=64,
    vocabulary=300,
    token_characters_max=10,
    eos_token_ids=frozenset({256, 257}),
    defaults={"temperature": 0.6, "top_k": 20.0},
)


def all_of(*bad_words: list[int], **fields: Any) -> list[Request]:
    message = worker_pb2.WorkerServiceGenerateRequest(
        request=generation_pb2.GenerateRequest(text="x", **fields),
        prepared=worker_pb2.PrepareResponse(bad_words_le=map(pack_ids, bad_words)),
        internal_id="r",
    )
    return translate.to_requests(message, [1], 5, FACTS, frozenset({10}))


def made(**fields: Any) -> Request:
    (one,) = all_of(**fields)
    return one


def sampled(**fields: Any) -> Request:
    return made(sampling=types_pb2.SamplingParams(**fields))


def stopped(**fields: Any) -> Request:
    return made(stop=types_pb2.StopConditions(**fields))


def test_what_is_not_asked_for_is_the_model_s_default() -> None:
    assert made().sampling.temperature == 0.6
    assert made().sampling.top_k == 20
    assert sampled(temperature=0.0).sampling.greedy


@pytest.mark.parametrize("top_k", [-1, 0, 300, 2**31 - 1])
def test_a_top_k_of_none_or_above_the_vocabulary_keeps_all(top_k: int) -> None:
    assert sampled(top_k=top_k).sampling.top_k == 0


def test_seeds_differ_unless_given() -> None:
    assert made().sampling.seed != made().sampling.seed
    assert sampled(seed=0).sampling.seed == 0


def test_end_tokens_end_unless_ignored() -> None:
    assert made().stop.end_ids == {256, 257}
    assert stopped(ignore_eos=True).stop.end_ids == frozenset()


def test_limits_and_ids_that_end_are_kept() -> None:
    one = stopped(min_tokens=3, token_ids=[7])
    assert (one.stop.min_tokens, one.stop.max_tokens, one.stop.stop_ids) == (3, 5, {7})


def test_penalties_bias_and_xtc_are_kept() -> None:
    given: dict[str, float] = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.75,
        "penalty_window": 32,
    }
    params = sampled(**given, logit_bias={9: 1.0, 3: -100.0}).sampling
    assert {name: getattr(params, name) for name in given} == given
    assert params.logit_bias == ((3, -100.0), (9, 1.0))
    assert params.xtc_exempt == {10, 256, 257}


def test_bad_words_are_those_that_were_prepared() -> None:
    (one,) = all_of([1, 2], [3])
    assert one.sampling.bad_words == ((1, 2), (3,))


def test_several_answers_start_from_one_prompt_and_differ_by_seed() -> None:
    works = all_of(n=4, sampling=types_pb2.SamplingParams(seed=2**64 - 1))
    assert [one.id for one in works] == ["r#0", "r#1", "r#2", "r#3"]
    assert [one.leader for one in works] == [None, *[works[0]] * 3]
    seeds = [one.sampling.seed for one in works]
    assert seeds[0] == 2**64 - 1
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [
        one.sampling.seed for one in all_of(n=4, sampling=types_pb2.SamplingParams(seed=2**64 - 1))
    ]
    assert len({one.sampling.seed for one in all_of(n=4)}) == 4


def test_the_prompt_is_told_of_by_the_first_answer_alone() -> None:
    works = all_of(
        n=2,
        logprobs=types_pb2.LogprobOptions(top=3, prompt=True),
        stream=types_pb2.StreamOptions(progress=True),
    )
    assert [one.logprobs for one in works] == [LogprobRule(3, prompt=True), LogprobRule(3)]
    assert [one.wants_progress for one in works] == [True, False]
    assert made().logprobs is None


@pytest.mark.parametrize(
    ("name", "priority"),
    [
        ("UNSPECIFIED", Priority.DEFAULT),
        ("BULK", Priority.BULK),
        ("DEFAULT", Priority.DEFAULT),
        ("INTERACTIVE", Priority.INTERACTIVE),
        ("SYSTEM", Priority.SYSTEM),
    ],
)
def test_priorities_are_the_engine_s(name: str, priority: Priority) -> None:
    value = types_pb2.PriorityClass.Value(f"PRIORITY_CLASS_{name}")
    assert made(priority=value).priority is priority
