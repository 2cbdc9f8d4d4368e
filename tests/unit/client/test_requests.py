"""Keywords that cannot be sent are refused by the name of their field."""

from typing import Any

import pytest

from bramley.client.requests import (
    CacheOptions,
    Message,
    Options,
    PromptOptions,
    explain_request,
    generate_request,
    tokenize_request,
)
from bramley.common.errors import InvalidRequest


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "sampling.seed"),
        ({"top_k": 2**40}, "sampling.top_k"),
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"max_tokens": 2**31}, "stop.max_tokens"),
        ({"stop": [3]}, "stop.strings"),
        ({"bad_words": [3]}, "stop.bad_words"),
        ({"stop_token_ids": [-1]}, "stop.token_ids"),
        ({"n": 2**31}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "4"}, "n"),
        ({"logit_bias": {-1: 0.0}}, "sampling.logit_bias"),
        ({"penalty_window": -1}, "sampling.penalty_window"),
        ({"logprobs": 2**31}, "logprobs.top"),
        ({"prompt_logprobs": "yes"}, "logprobs.prompt"),
        ({"priority": "urgent"}, "priority"),
        ({"temprature": 0.0}, "temprature"),
        ({"priority": 3}, "priority"),
        ({"max_delay_s": float("inf")}, "stream.max_delay"),
        ({"max_delay_s": float("nan")}, "stream.max_delay"),
        ({"request_id": "\ud800"}, "request_id"),
        ({"session_key": 3}, "session_key"),
        ({"salt": 3}, "cache.salt"),
        ({"fairness_key": 3}, "fairness_key"),
        ({"max_queue_s": float("nan")}, "max_queue_time"),
        ({"labels": {"a": 1}}, "labels"),
        ({"skip_store": "yes"}, "cache.skip_store"),
    ],
)
def test_unsendable_option_is_refused_by_name(options: Options, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generate_request("m", "hi", options)
    assert caught.value.field == field


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"]])
def test_unsendable_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"^token_ids: "):
        generate_request("m", None, {"token_ids": ids})


def test_turn_without_content_is_refused_by_its_place() -> None:
    turns: list[dict[str, str]] = [{"role": "user", "content": "hi"}, {"role": "user"}]
    with pytest.raises(InvalidRequest, match=r"chat.messages\[1\]: lacks 'content'"):
        generate_request("m", None, {"messages": turns})  # pyright: ignore[reportArgumentType]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^text: "):
        generate_request("m", "\ud800", {})


@pytest.mark.parametrize(
    ("prompt", "options"),
    [(None, {}), ("hi", {"token_ids": [1]}), ("", {"messages": []})],
)
def test_exactly_one_input_is_demanded(prompt: str | None, options: Options) -> None:
    with pytest.raises(InvalidRequest, match=r"^input: "):
        generate_request("m", prompt, options)


def test_tokenize_demands_exactly_one_input() -> None:
    with pytest.raises(InvalidRequest, match=r"^input: "):
        tokenize_request("m", None, None, {})


def test_empty_prompt_is_an_input() -> None:
    assert generate_request("m", "", {}).WhichOneof("input") == "text"


def test_absent_options_are_absent_on_the_wire() -> None:
    request = generate_request("m", "hi", {"max_tokens": None, "temperature": None})
    assert not request.HasField("sampling")
    assert not request.stop.HasField("max_tokens")
    assert not request.HasField("cache")
    assert not request.HasField("max_queue_time")


def test_who_asks_and_how_long_it_may_wait_is_on_the_wire() -> None:
    request = generate_request(
        "m",
        "hi",
        {
            "fairness_key": "me",
            "max_queue_s": 0.5,
            "labels": {"team": "a"},
            "skip_lookup": True,
            "skip_store": True,
        },
    )
    assert (request.fairness_key, dict(request.labels)) == ("me", {"team": "a"})
    assert request.max_queue_time.ToTimedelta().total_seconds() == 0.5
    assert (request.cache.skip_lookup, request.cache.skip_store) == (True, True)


def test_a_prompt_is_counted_and_explained_as_it_is_generated_from() -> None:
    said: list[Message] = [{"role": "user", "content": "hi"}]
    options: PromptOptions = {
        "tools": [{"name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "f",
        "reasoning": False,
        "reasoning_effort": "low",
        "template_kwargs": {"x": True},
    }
    generated = generate_request("m", None, {"messages": said, **options})
    asked: CacheOptions = {"messages": said, **options}
    for made in (tokenize_request("m", None, said, options), explain_request("m", None, asked)):
        for name in ("chat", "tools", "tool_choice", "reasoning"):
            assert getattr(made, name) == getattr(generated, name)
    unknown: Any = {"n": 2}
    with pytest.raises(InvalidRequest, match="n: is no option"):
        tokenize_request("m", "hi", None, unknown)
    with pytest.raises(InvalidRequest, match="template_kwargs"):
        tokenize_request("m", "hi", None, {"template_kwargs": {"x": True}})
