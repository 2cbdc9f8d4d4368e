"""A body of OpenAI's dialect says the same as the request that is made of it."""

from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.failures import BodyTooLarge
from bramley.router.gateway.openai import chat, completions
from bramley.router.gateway.openai.options import renamed

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}


def chatted(**fields: Any) -> generation_pb2.GenerateRequest:
    (request,) = chat.read({"model": "m", "messages": HELLO, **fields}, 1).requests
    return request


def completed(**fields: Any) -> generation_pb2.GenerateRequest:
    (request,) = completions.read({"model": "m", "prompt": "x", **fields}, 1).requests
    return request


def field_of(kind: Any, **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        kind(**fields)
    return caught.value.field


def test_messages_become_a_conversation() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    made = chatted(
        messages=[
            {"role": "developer", "content": "brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None},
            {"role": "tool", "tool_call_id": "c", "content": ""},
            {"role": "assistant", "content": "b", "reasoning_content": "why", "annotations": []},
        ]
    ).chat.messages
    assert [message.role for message in made] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (made[1].name, [part.text for part in made[1].parts]) == ("ann", ["a"])
    call = types_pb2.ToolCall(id="c", name="f", arguments_json="{}")
    assert (list(made[2].tool_calls), made[2].HasField("content")) == ([call], False)
    assert (made[3].tool_call_id, made[3].HasField("content")) == ("c", True)
    assert made[4].reasoning_content == "why"


def test_what_is_left_out_or_null_stays_unsaid() -> None:
    nulls = dict.fromkeys(chat.ChatBody.__struct_fields__)
    kept = {"model": "m", "messages": HELLO}
    assert chat.read({**nulls, **kept}, 1).requests == chat.read(kept, 1).requests
    made = chatted()
    assert not made.HasField("sampling") or not made.sampling.ListFields()
    assert not made.stop.HasField("max_tokens")
    assert not made.HasField("constraint")
    assert not made.HasField("reasoning")
    assert not made.HasField("n")


@pytest.mark.parametrize("made_by", [chatted, completed])
def test_sampling_and_stops_are_passed_on(made_by: Any) -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "top_k": 4,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
    }
    made = made_by(
        **sampling,
        seed=-1,
        logit_bias={"7": -3},
        stop="a",
        stop_token_ids=[5],
        min_tokens=2,
        ignore_eos=True,
        include_stop_str_in_output=True,
        bad_words=["b"],
        max_tokens=9,
        n=2,
    )
    for name, value in sampling.items():
        assert getattr(made.sampling, name) == value, name
    assert (made.sampling.seed, dict(made.sampling.logit_bias)) == (2**64 - 1, {7: -3.0})
    assert made.stop == types_pb2.StopConditions(
        max_tokens=9,
        min_tokens=2,
        strings=["a"],
        token_ids=[5],
        ignore_eos=True,
        include_stop=True,
        bad_words=["b"],
    )
    assert made.n == 2
    assert list(made_by(stop=["a", "b"]).stop.strings) == ["a", "b"]


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_has_64_bits(seed: int) -> None:
    assert field_of(chatted, seed=seed) == "seed"


@pytest.mark.parametrize("made_by", [chatted, completed])
def test_hints_are_passed_on(made_by: Any) -> None:
    made = made_by(user="u", prompt_cache_key="k", cache_salt="s", metadata={"a": "b"})
    assert (made.fairness_key, made.session_key, made.cache.salt) == ("u", "k", "s")
    assert dict(made.labels) == {"a": "b"}
    for tier, priority in (
        ("auto", types_pb2.PRIORITY_CLASS_UNSPECIFIED),
        ("flex", types_pb2.PRIORITY_CLASS_BULK),
        ("priority", types_pb2.PRIORITY_CLASS_INTERACTIVE),
    ):
        assert made_by(service_tier=tier).priority == priority
    assert field_of(made_by, service_tier="scale") == "service_tier"


@pytest.mark.parametrize("made_by", [chatted, completed])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", {"type": "object"}),
        ("regex", "a+"),
        ("choice", ["a", "b"]),
        ("grammar", "start: /a/"),
        ("json_object", True),
    ],
)
def test_constraints_of_vllm_s_are_passed_on(made_by: Any, kind: str, value: Any) -> None:
    name = kind.removesuffix("_schema")
    made = [made_by(structured_outputs={name: value})]
    if kind != "json_object":
        made.append(made_by(**{f"guided_{name}": value}))
    for one in made:
        assert one.constraint.WhichOneof("constraint") == kind
    said: Any = getattr(made[0].constraint, kind)
    assert (list(said.values) if kind == "choice" else said) == (
        '{"type":"object"}' if kind == "json_schema" else value
    )
    twice = {"guided_regex": "a", "structured_outputs": {name: value}}
    assert field_of(made_by, **twice) == f"structured_outputs.{name}"


def test_a_response_format_is_a_constraint() -> None:
    assert not chatted(response_format={"type": "text"}).HasField("constraint")
    assert chatted(response_format={"type": "json_object"}).constraint.json_object
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"b": 1, "a": 2}}}
    assert chatted(response_format=schema).constraint.json_schema == '{"b":1,"a":2}'
    bare = {"type": "json_schema"}
    assert field_of(chatted, response_format=bare) == "response_format.json_schema"
    assert field_of(chatted, response_format=schema, guided_regex="a") == "response_format"


def test_tools_and_their_choice_are_passed_on() -> None:
    made = chatted(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    tool = types_pb2.Tool(name="f", parameters_json_schema='{"b":1,"a":2}')
    assert list(made.tools) == [tool]
    assert made.tool_choice.mode == types_pb2.ToolChoice.MODE_REQUIRED
    assert made.HasField("parallel_tool_calls")
    assert not made.parallel_tool_calls
    named = {"type": "function", "function": {"name": "f"}}
    assert chatted(tools=[TOOL], tool_choice=named).tool_choice.name == "f"


def test_a_strict_tool_takes_a_choice_that_is_kept_to() -> None:
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    assert field_of(chatted, tools=[strict]) == "tools[0].function.strict"
    assert chatted(tools=[strict], tool_choice="required").tools


def test_reasoning_and_the_template_are_asked_for() -> None:
    assert not chatted(reasoning_effort="none").reasoning.enabled
    assert chatted(reasoning_effort="none").reasoning.HasField("enabled")
    made = chatted(reasoning_effort="low", thinking_token_budget=7, chat_template_kwargs={"a": 1})
    assert (made.reasoning.effort, made.reasoning.budget_tokens) == ("low", 7)
    assert dict(made.chat.template_kwargs) == {"a": 1.0}
    going_on = chatted(continue_final_message=True, add_generation_prompt=False)
    assert going_on.chat.continue_final_message
    assert field_of(chatted, add_generation_prompt=False) == "add_generation_prompt"


def test_the_two_names_of_the_limit_agree() -> None:
    assert chatted(max_completion_tokens=5).stop.max_tokens == 5
    assert chatted(max_completion_tokens=5, max_tokens=5).stop.max_tokens == 5
    assert field_of(chatted, max_completion_tokens=5, max_tokens=6) == "max_tokens"
    assert completed().stop.max_tokens == 16


def test_log_probabilities_are_asked_for_with_their_bytes() -> None:
    asked = types_pb2.LogprobOptions(top=3, bytes=True)
    assert chatted(logprobs=True, top_logprobs=3).logprobs == asked
    assert completed(logprobs=3).logprobs == asked
    assert field_of(chatted, top_logprobs=3) == "top_logprobs"
    assert not chatted(logprobs=False).HasField("logprobs")


@pytest.mark.parametrize(
    ("prompt", "made"),
    [
        ("a", {"text": "a"}),
        (["a"], {"text": "a"}),
        ([1, 2], {"token_ids": types_pb2.TokenIds(ids=[1, 2])}),
        ([[1, 2]], {"token_ids": types_pb2.TokenIds(ids=[1, 2])}),
        ([7], {"token_ids": types_pb2.TokenIds(ids=[7])}),
    ],
)
def test_a_prompt_is_text_or_ids(prompt: Any, made: Any) -> None:
    request = completed(prompt=prompt)
    for name, value in made.items():
        assert getattr(request, name) == value


def test_several_prompts_are_a_request_each() -> None:
    given = ["a", [1, 2], "c"]
    body = {"model": "m", "prompt": given, "n": 2, "max_tokens": 3}
    made = completions.read(body, 1).requests
    assert [(one.text, [*one.token_ids.ids]) for one in made] == [
        ("a", []),
        ("", [1, 2]),
        ("c", []),
    ]
    assert {(one.n, one.stop.max_tokens) for one in made} == {(2, 3)}


@pytest.mark.parametrize("prompt", [["a", 1], ["a"] * (completions.PROMPTS_MAX + 1)])
def test_ids_beside_prompts_and_too_many_prompts_are_refused(prompt: Any) -> None:
    assert field_of(completed, prompt=prompt) == "prompt"


def test_what_is_not_supported_is_refused_by_its_name() -> None:
    for kind, made_by in ((chat.ChatBody, chatted), (completions.CompletionBody, completed)):
        for name, allowed in kind.ONLY.items():
            assert field_of(made_by, **{name: {"some": "thing"}}) == name
            for value in allowed:
                made_by(**{name: value})
    for name in chat.Message.ONLY:
        message = {"role": "assistant", "content": "x", name: {"some": "thing"}}
        assert field_of(chatted, messages=[message]) == f"messages[0].{name}"
    image = {"type": "image_url", "image_url": {"url": "x"}}
    found = field_of(chatted, messages=[{"role": "user", "content": [image]}])
    assert found.startswith("messages[0].content[0]")
    assert field_of(chatted, stream_options={"include_usage": True}) == "stream_options"


@pytest.mark.parametrize(
    ("router", "body"),
    [
        ("sampling.top_p", "top_p"),
        ("stop.max_tokens", "max_tokens"),
        ("stop.strings[1]", "stop[1]"),
        ("chat.messages[2].parts[1].text", "messages[2].content[1].text"),
        (
            "chat.messages[2].tool_calls[0].arguments_json",
            "messages[2].tool_calls[0].function.arguments",
        ),
        ("chat.messages[2].role", "messages[2].role"),
        ("tools[1].name", "tools[1].function.name"),
        ("tools[1].parameters_json_schema", "tools[1].function.parameters"),
        ("constraint.json_schema", "response_format"),
        ("chat.template_kwargs.tools", "chat_template_kwargs.tools"),
        ("model", "model"),
    ],
)
def test_the_router_s_fields_are_named_as_bodies_do(router: str, body: str) -> None:
    assert renamed(router) == body


def test_what_all_prompts_share_counts_for_each_before_it_is_copied() -> None:
    body = {"model": "m", "prompt": ["a"] * 32, "stop": ["s" * (2 << 20)]}
    with pytest.raises(BodyTooLarge, match="32 prompts"):
        completions.read(body, 1)
