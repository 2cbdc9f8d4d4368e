"""What a request may ask, and how it is refused: by the path of the field."""

import math
from typing import Any

import pytest
from google.protobuf import duration_pb2

from bramley.common.errors import ContextTooLong, InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker import intake
from bramley.worker.intake import ModelFacts
from bramley.worker.request import Request

FACTS = ModelFacts(
    context_tokens=64,
    vocabulary=300,
    token_characters_max=10,
    eos_token_ids=frozenset({256, 257}),
    defaults={"temperature": 0.6, "top_k": 20.0},
)


def request(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text="x", **fields)


def sampling(**fields: Any) -> generation_pb2.GenerateRequest:
    return request(sampling=types_pb2.SamplingParams(**fields))


def stop(**fields: Any) -> generation_pb2.GenerateRequest:
    return request(stop=types_pb2.StopConditions(**fields))


BAD = [
    ("sampling.temperature", sampling(temperature=-1.0)),
    ("sampling.temperature", sampling(temperature=math.nan)),
    ("sampling.temperature", sampling(temperature=math.inf)),
    ("sampling.top_p", sampling(top_p=1.5)),
    ("sampling.top_p", sampling(top_p=math.nan)),
    ("sampling.min_p", sampling(min_p=-0.1)),
    ("sampling.top_k", sampling(top_k=-2)),
    ("stop.max_tokens", stop(max_tokens=0)),
    ("stop.max_tokens", stop(max_tokens=-1)),
    ("stop.strings", stop(strings=[""])),
    ("stop.strings", stop(strings=["x"] * 65)),
    ("stop.strings", stop(strings=["x" * 1025])),
    ("n", request(n=2)),
    ("n", request(n=0)),
    ("stop.min_tokens", stop(min_tokens=1)),
    ("stop.bad_words", stop(bad_words=["x"])),
    ("sampling.logit_bias", sampling(logit_bias={1: 1.0})),
    ("sampling.presence_penalty", sampling(presence_penalty=0.0)),
    ("logprobs", request(logprobs=types_pb2.LogprobOptions())),
    ("tools", request(tools=[types_pb2.Tool(name="f")])),
    ("constraint", request(constraint=types_pb2.Constraint(regex="a"))),
    ("adapter", request(adapter="a")),
    ("speculation", request(speculation=types_pb2.SpeculationOptions(disabled=True))),
    (
        "stream.max_delay",
        request(stream=types_pb2.StreamOptions(max_delay=duration_pb2.Duration(seconds=1))),
    ),
]


@pytest.mark.parametrize(("field", "message"), BAD)
def test_a_bad_field_is_refused_by_its_path(
    field: str, message: generation_pb2.GenerateRequest
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        intake.check_fields(message)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "message",
    [
        request(),
        sampling(temperature=0.0, top_p=0.0, top_k=0, min_p=1.0, seed=0),
        sampling(temperature=1e-40, top_k=-1),
        sampling(top_k=2**31 - 1),
        stop(max_tokens=1, strings=["a"], token_ids=[1], ignore_eos=True, include_stop=True),
        request(n=1),
    ],
)
def test_a_good_request_passes(message: generation_pb2.GenerateRequest) -> None:
    intake.check_fields(message)


@pytest.mark.parametrize("prompt", [[], [300], [2**32 - 1]])
def test_a_prompt_of_no_or_unknown_ids_is_refused(prompt: list[int]) -> None:
    message = generation_pb2.GenerateRequest(token_ids=types_pb2.TokenIds(ids=prompt))
    with pytest.raises(InvalidRequest) as raised:
        intake.check_tokens(message, prompt, FACTS)
    assert raised.value.field == "token_ids"


def test_a_stop_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="300"):
        intake.check_tokens(stop(token_ids=[300]), [1], FACTS)


@pytest.mark.parametrize(
    ("prompt", "asked", "fits"),
    [
        (63, 1, True),
        (64, 1, False),
        (65, 1, False),
        (500, 1, False),
        (60, 10, False),
        (54, 10, True),
    ],
)
def test_b009_prompt_and_answer_fit_the_context_or_are_refused(
    prompt: int, asked: int, fits: bool
) -> None:
    message = stop(max_tokens=asked)
    if fits:
        assert intake.check_tokens(message, [1] * prompt, FACTS) == asked
        return
    with pytest.raises(ContextTooLong) as raised:
        intake.check_tokens(message, [1] * prompt, FACTS)
    assert raised.value.facts == {
        "prompt": str(prompt),
        "max_tokens": str(asked),
        "limit": "64",
    }


def test_b009_a_text_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    intake.check_text(640, "text", FACTS)
    with pytest.raises(ContextTooLong) as raised:
        intake.check_text(641, "text", FACTS)
    assert raised.value.facts["prompt"] == "65"


def test_b009_without_a_limit_the_answer_takes_the_room_left() -> None:
    assert intake.check_tokens(request(), [1] * 60, FACTS) == 4
    with pytest.raises(ContextTooLong):
        intake.check_tokens(request(), [1] * 64, FACTS)


def made(message: generation_pb2.GenerateRequest) -> Request:
    return intake.to_request(message, "r", [1], 5, FACTS)


def test_what_is_not_asked_for_is_the_model_s_default() -> None:
    assert made(request()).sampling.temperature == 0.6
    assert made(request()).sampling.top_k == 20
    assert made(sampling(temperature=0.0)).sampling.greedy


@pytest.mark.parametrize("top_k", [-1, 0, 300, 2**31 - 1])
def test_a_top_k_of_none_or_above_the_vocabulary_keeps_all(top_k: int) -> None:
    assert made(sampling(top_k=top_k)).sampling.top_k == 0


def test_seeds_differ_unless_given() -> None:
    assert made(request()).sampling.seed != made(request()).sampling.seed
    assert made(sampling(seed=0)).sampling.seed == 0


def test_end_tokens_end_unless_ignored() -> None:
    assert made(request()).stop.end_ids == {256, 257}
    assert made(stop(ignore_eos=True)).stop.end_ids == frozenset()
