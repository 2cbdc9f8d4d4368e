"""What a request may ask, and how it is refused: by the path of the field."""

import dataclasses
import math
from typing import Any

import pytest
from google.protobuf import duration_pb2

from bramley.common.errors import ContextTooLong, InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker import intake
from bramley.worker.intake import ModelFacts

FACTS = ModelFacts(
    context_tokens=64,
    vocabulary=300,
    token_characters_max=10,
    eos_token_ids=frozenset({256, 257}),
    defaults={"temperature": 0.6, "top_k": 20.0},
)


def request(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text="x", **fields)


def chat(**fields: Any) -> generation_pb2.GenerateRequest:
    turns = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="x")])
    return generation_pb2.GenerateRequest(chat=turns, **fields)


def sampling(**fields: Any) -> generation_pb2.GenerateRequest:
    return request(sampling=types_pb2.SamplingParams(**fields))


def stop(**fields: Any) -> generation_pb2.GenerateRequest:
    return request(stop=types_pb2.StopConditions(**fields))


def delayed(**span: int) -> generation_pb2.GenerateRequest:
    return request(stream=types_pb2.StreamOptions(max_delay=duration_pb2.Duration(**span)))


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
    ("stop.token_ids", stop(token_ids=[1] * 1025)),
    ("stop.min_tokens", stop(min_tokens=-1)),
    ("stop.bad_words", stop(bad_words=[""])),
    ("stop.bad_words", stop(bad_words=["x"] * 129)),
    ("stop.bad_words", stop(bad_words=["x" * 257])),
    ("n", request(n=0)),
    ("n", request(n=-1)),
    ("n", request(n=17)),
    ("n", request(n=2**31 - 1)),
    ("sampling.logit_bias", sampling(logit_bias={1: 100.5})),
    ("sampling.logit_bias", sampling(logit_bias={1: -math.inf})),
    ("sampling.logit_bias", sampling(logit_bias={1: math.nan})),
    ("sampling.logit_bias", sampling(logit_bias=dict.fromkeys(range(1025), 0.0))),
    ("sampling.presence_penalty", sampling(presence_penalty=2.5)),
    ("sampling.frequency_penalty", sampling(frequency_penalty=-2.5)),
    ("sampling.repetition_penalty", sampling(repetition_penalty=0.0)),
    ("sampling.repetition_penalty", sampling(repetition_penalty=1e-40)),
    ("sampling.repetition_penalty", sampling(repetition_penalty=101.0)),
    ("sampling.xtc_probability", sampling(xtc_probability=1.5)),
    ("sampling.xtc_threshold", sampling(xtc_threshold=-0.5)),
    *[
        (f"sampling.{name}", sampling(**{name: value}))
        for name in (
            "xtc_probability",
            "xtc_threshold",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        for value in (math.nan, math.inf, -math.inf)
    ],
    ("logprobs.top", request(logprobs=types_pb2.LogprobOptions(top=21))),
    ("logprobs.top", request(logprobs=types_pb2.LogprobOptions(top=-1))),
    ("priority", request(priority=5)),
    ("tools", request(tools=[types_pb2.Tool(name="f")])),
    ("tools[0].name", chat(tools=[types_pb2.Tool(name="x y")])),
    ("tools[0].name", chat(tools=[types_pb2.Tool(name="x" * 129)])),
    ("tool_choice.name", chat(tool_choice=types_pb2.ToolChoice(name="f"))),
    ("reasoning.budget_tokens", chat(reasoning=types_pb2.ReasoningOptions(budget_tokens=-1))),
    ("constraint.regex", request(constraint=types_pb2.Constraint(regex=""))),
    ("adapter", request(adapter="a")),
    ("speculation", request(speculation=types_pb2.SpeculationOptions(disabled=True))),
    ("stream.max_delay", delayed(seconds=10, nanos=1)),
    ("stream.max_delay", delayed(seconds=-1)),
    ("stream.max_delay", delayed(nanos=-1)),
    ("stream.max_delay", delayed(seconds=2**62)),
    ("session_key", request(session_key="x" * 257)),
    ("cache.salt", request(cache=types_pb2.CacheHints(salt="x" * 513))),
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
        request(n=16, priority=types_pb2.PRIORITY_CLASS_SYSTEM),
        sampling(xtc_probability=1.0, xtc_threshold=1.0, repetition_penalty=0.1),
        sampling(presence_penalty=-2.0, frequency_penalty=2.0, penalty_window=2**32 - 1),
        sampling(logit_bias=dict.fromkeys(range(1024), -100.0)),
        stop(min_tokens=0, bad_words=["x" * 256] * 128),
        request(logprobs=types_pb2.LogprobOptions(top=20, prompt=True)),
        delayed(seconds=10),
        request(session_key="x" * 256, cache=types_pb2.CacheHints(salt="é" * 512)),
        request(constraint=types_pb2.Constraint(regex="a")),
        chat(tools=[types_pb2.Tool(name="f")], tool_choice=types_pb2.ToolChoice(name="f")),
        chat(reasoning=types_pb2.ReasoningOptions(enabled=True, budget_tokens=0, effort="low")),
    ],
)
def test_a_good_request_passes(message: generation_pb2.GenerateRequest) -> None:
    intake.check_fields(message)


TOOLS = [types_pb2.Tool(name="f")]
NONE = types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_NONE)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("tools", chat(tools=TOOLS)),
        ("reasoning.enabled", chat(reasoning=types_pb2.ReasoningOptions(enabled=True))),
        ("reasoning.budget_tokens", chat(reasoning=types_pb2.ReasoningOptions(budget_tokens=0))),
        ("reasoning.effort", chat(reasoning=types_pb2.ReasoningOptions(effort="low"))),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_its_path(
    field: str, message: generation_pb2.GenerateRequest
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        intake.check_fields(message, FACTS)
    assert raised.value.field == field
    able = dataclasses.replace(FACTS, reasoning_format="think", tool_format="json_tools")
    intake.check_fields(message, able)


@pytest.mark.parametrize(
    "message",
    [
        chat(tools=TOOLS, tool_choice=NONE),
        chat(reasoning=types_pb2.ReasoningOptions(enabled=False)),
        chat(reasoning=types_pb2.ReasoningOptions()),
    ],
)
def test_what_asks_nothing_of_the_model_passes(message: generation_pb2.GenerateRequest) -> None:
    intake.check_fields(message, FACTS)


@pytest.mark.parametrize("prompt", [[], [300], [2**32 - 1]])
def test_a_prompt_of_no_or_unknown_ids_is_refused(prompt: list[int]) -> None:
    message = generation_pb2.GenerateRequest(token_ids=types_pb2.TokenIds(ids=prompt))
    with pytest.raises(InvalidRequest) as raised:
        intake.check_tokens(message, prompt, FACTS)
    assert raised.value.field == "token_ids"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("stop.token_ids", stop(token_ids=[299, 300])),
        ("sampling.logit_bias", sampling(logit_bias={299: 1.0, 300: 1.0})),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused(
    field: str, message: generation_pb2.GenerateRequest
) -> None:
    with pytest.raises(InvalidRequest, match="300") as raised:
        intake.check_tokens(message, [1], FACTS)
    assert raised.value.field == field


@pytest.mark.parametrize(("conditions", "most"), [({"max_tokens": 5}, 5), ({}, 63)])
def test_more_min_tokens_than_the_answer_may_take_are_refused(
    conditions: dict[str, int], most: int
) -> None:
    assert intake.check_tokens(stop(min_tokens=most, **conditions), [1], FACTS) == most
    with pytest.raises(InvalidRequest) as raised:
        intake.check_tokens(stop(min_tokens=most + 1, **conditions), [1], FACTS)
    assert raised.value.field == "stop.min_tokens"


def test_logprobs_of_more_values_than_there_are_or_may_be_are_refused() -> None:
    few = dataclasses.replace(FACTS, vocabulary=10, context_tokens=1 << 20)
    for field, options, prompt in (
        ("logprobs.top", types_pb2.LogprobOptions(top=11), [1]),
        ("logprobs.prompt", types_pb2.LogprobOptions(top=9, prompt=True), [1] * 104_858),
    ):
        with pytest.raises(InvalidRequest) as raised:
            intake.check_tokens(request(logprobs=options), prompt, few)
        assert raised.value.field == field
    enough = types_pb2.LogprobOptions(top=9, prompt=True)
    intake.check_tokens(request(logprobs=enough), [1] * 104_857, few)


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
