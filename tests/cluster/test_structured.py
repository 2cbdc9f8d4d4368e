"""Reasoning, calls of tools and constraints through the whole cluster and a real engine."""

import asyncio
import json
import time
from typing import Any

import grpc
import jsonschema
import pytest

from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import ANSWERS, ENDLESS, Served

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city"],
    "additionalProperties": False,
}
ANY = {"type": "object", "properties": {"city": {"type": "string"}}}


class Said:
    """One answer, its messages joined."""

    def __init__(self) -> None:
        self.reasoning = self.text = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.ids: list[int] = []
        self.reasoning_tokens = 0
        self.finished = generation_pb2.Finished()

    def add(self, delta: generation_pb2.Delta) -> None:
        self.reasoning += delta.reasoning_text
        self.text += delta.text
        self.ids += delta.token_ids
        self.reasoning_tokens = delta.reasoning_tokens
        for part in delta.tool_calls:
            new: dict[str, Any] = {"arguments": "", "ended": False, "malformed": False}
            call = self.calls.setdefault(part.index, new)
            if part.name:
                call |= {"name": part.name, "id": part.id}
            call["arguments"] += part.arguments_json
            call["ended"] |= part.ended
            call["malformed"] |= part.malformed

    @property
    def reason(self) -> str:
        name = types_pb2.FinishReason.Name(self.finished.reason)
        return name.removeprefix("FINISH_REASON_").lower()

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(call["arguments"]) for call in self.calls.values()]


async def ask(served: Served, content: str, model: str = "script", **fields: Any) -> Said:
    """Ask in a conversation, greedily unless told otherwise."""
    message = types_pb2.ChatMessage(role="user", content=content)
    fields.setdefault("sampling", types_pb2.SamplingParams(temperature=0.0))
    request = generation_pb2.GenerateRequest(
        model=model, chat=types_pb2.ChatInput(messages=[message]), **fields
    )
    said = Said()
    async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
        call = RouterServiceStub(channel).Generate(request, timeout=60.0)
        async for response in call:
            if response.HasField("delta"):
                said.add(response.delta)
            elif response.HasField("finished"):
                said.finished.CopyFrom(response.finished)
    return said


async def refused(served: Served, content: str, **fields: Any) -> str | None:
    """The field that is named."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(served, content, **fields)
    error = RemoteError(raised.value)
    assert error.status_code is grpc.StatusCode.INVALID_ARGUMENT
    return error.field


def weather(schema: dict[str, Any] = SCHEMA, *more: str) -> dict[str, Any]:
    tools = [
        types_pb2.Tool(name=name, parameters_json_schema=json.dumps(schema))
        for name in ("weather", *more)
    ]
    return {"tools": tools}


def choice(mode: str = "", name: str = "") -> types_pb2.ToolChoice:
    if name:
        return types_pb2.ToolChoice(name=name)
    return types_pb2.ToolChoice(mode=types_pb2.ToolChoice.Mode.Value(f"MODE_{mode.upper()}"))


def limit(tokens: int) -> types_pb2.StopConditions:
    return types_pb2.StopConditions(max_tokens=tokens)


def schema_of(value: object) -> types_pb2.Constraint:
    return types_pb2.Constraint(json_schema=json.dumps(value))


THINKING: dict[str, Any] = {"reasoning": types_pb2.ReasoningOptions(enabled=True)}
NOT_THINKING: dict[str, Any] = {"reasoning": types_pb2.ReasoningOptions(enabled=False)}


@pytest.mark.parametrize("per_message", [0, 1])
@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("a", THINKING, ("abc", "def", "stop")),
        ("a", {**THINKING, "stop": limit(3)}, ("abc", "", "length")),
        ("c", NOT_THINKING, ("", "def", "stop")),
        ("b", {}, ("abc", "def", "stop")),
    ],
)
async def test_b046_reasoning_is_told_apart_whoever_opened_it(
    served: Served,
    content: str,
    options: dict[str, Any],
    expected: tuple[str, str, str],
    per_message: int,
) -> None:
    stream = types_pb2.StreamOptions(max_tokens_per_message=per_message)
    said = await ask(served, content, stream=stream, **options)
    assert (said.reasoning, said.text, said.reason) == expected
    usage = said.finished.usage
    assert usage.completion_tokens == len(said.ids)
    assert usage.reasoning_tokens == said.reasoning_tokens
    assert (usage.reasoning_tokens > 0) == bool(said.reasoning)


async def test_a_budget_ends_reasoning_and_the_answer_goes_on(served: Served) -> None:
    options = types_pb2.ReasoningOptions(enabled=True, budget_tokens=2)
    said = await ask(served, "a", reasoning=options, stop=limit(60))
    assert said.reasoning == "ab"
    assert "</think>" not in said.text


async def test_a_budget_that_is_not_used_up_changes_nothing(served: Served) -> None:
    options = types_pb2.ReasoningOptions(enabled=True, budget_tokens=50)
    said = await ask(served, "a", reasoning=options)
    assert (said.reasoning, said.text) == ("abc", "def")


async def test_a_call_is_told_with_its_name_and_arguments(served: Served) -> None:
    said = await ask(served, "d", **weather())
    assert said.text.strip() == "Let me see."
    (call,) = said.calls.values()
    assert call["name"] == "weather"
    assert call["id"]
    assert call["ended"]
    assert said.arguments == [{"city": "Oslo", "days": 3}]
    assert said.reason == "tool_calls"


async def test_parallel_calls_after_reasoning_have_their_indexes(served: Served) -> None:
    said = await ask(served, "e", **weather())
    assert said.reasoning == "Which?"
    assert not said.text
    assert [one["city"] for one in said.arguments] == ["Oslo", "Rome"]
    assert list(said.calls) == [0, 1]
    assert said.calls[0]["id"] != said.calls[1]["id"]


async def test_where_one_call_is_allowed_the_answer_ends_before_a_second(served: Served) -> None:
    said = await ask(served, "e", parallel_tool_calls=False, **weather())
    assert said.reasoning == "Which?"
    assert said.arguments == [{"city": "Oslo", "days": 3}]
    assert said.calls[0]["ended"]
    assert said.reason == "tool_calls"
    assert said.finished.usage.completion_tokens == len(said.ids)
    await served.idle("script")  # its row is free


async def test_without_tools_a_call_is_text(served: Served) -> None:
    said = await ask(served, "d")
    assert said.text == ANSWERS["d"]
    assert not said.calls
    assert said.reason == "stop"


@pytest.mark.parametrize("per_message", [0, 1])
@pytest.mark.parametrize("content", ["f", "g", "h", "i"])
async def test_b045_odd_arguments_reach_the_client_and_end_nothing(
    served: Served, content: str, per_message: int
) -> None:
    beside = asyncio.ensure_future(served.completed("script", ENDLESS, max_tokens=40))
    stream = types_pb2.StreamOptions(max_tokens_per_message=per_message)
    said = await ask(served, content, stream=stream, **weather(ANY))
    (call,) = said.calls.values()
    wrote = ANSWERS[content].partition('"arguments": ')[2].rpartition("}\n</tool_call>")[0]
    assert call["arguments"] == wrote
    assert call["ended"]
    if content == "f":  # a backslash that JSON does not know
        assert call["malformed"]
        assert said.reason == "stop"
    else:
        assert said.arguments == [json.loads(wrote)]
        assert said.reason == "tool_calls"
    assert (await beside).text == "abc " * 10


@pytest.mark.parametrize("content", ["d", "j"])
async def test_b048_a_call_that_is_cut_is_not_told_as_whole(served: Served, content: str) -> None:
    whole = await ask(served, content, **weather())
    tokens = len(whole.ids)
    closes = ANSWERS[content].rfind("}") + 1
    for most in [*range(1, tokens, 5), tokens - 1, tokens, tokens + 2]:
        said = await ask(served, content, stop=limit(most), **weather())
        ended = any(call["ended"] for call in said.calls.values())
        if most < closes:
            assert said.reason == "length"
            assert not ended
        if said.reason == "tool_calls":
            assert ended
            assert said.arguments == [{"city": "Oslo", "days": 3}]
        else:
            assert said.reason == ("length" if most < tokens else whole.reason)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["", "weather"])
async def test_a_required_call_is_made_and_fits_its_schema(
    served: Served, name: str, seed: int
) -> None:
    sampling = types_pb2.SamplingParams(temperature=1.0, seed=seed)
    said = await ask(
        served,
        "c",
        tool_choice=choice("required", name),
        sampling=sampling,
        parallel_tool_calls=False,
        **weather(SCHEMA, "other"),
    )
    (call,) = said.calls.values()
    assert call["name"] in ({name} if name else {"weather", "other"})
    jsonschema.validate(said.arguments[0], SCHEMA)
    assert said.reason == "tool_calls"
    assert not said.text


async def test_b048_a_required_call_is_cut_at_any_limit_without_being_told_as_whole(
    served: Served,
) -> None:
    asked: dict[str, Any] = {**weather(), "tool_choice": choice("required")}
    whole = await ask(served, "c", **asked)
    for most in range(1, len(whole.ids) + 2, 7):
        said = await ask(served, "c", stop=limit(most), **asked)
        assert not said.text
        if most < len(whole.ids):
            assert said.reason == "length"
        else:
            assert (said.reason, said.arguments) == ("tool_calls", whole.arguments)


async def test_no_call_is_made_where_none_may_be(served: Served) -> None:
    said = await ask(served, "d", tool_choice=choice("none"), stop=limit(120), **weather())
    assert not said.calls
    assert "<tool_call>" not in said.text


async def test_a_constrained_answer_may_still_call_a_tool(served: Served) -> None:
    asked: dict[str, Any] = {**weather(), "constraint": schema_of({"enum": ["yes", "no"]})}
    called = await ask(served, "k", **asked)
    assert [one["city"] for one in called.arguments] == ["Oslo", "Rome"]
    said = await ask(served, "c", **asked)
    assert said.calls or json.loads(said.text) in {"yes", "no"}


async def test_a_constraint_begins_after_reasoning(served: Served) -> None:
    said = await ask(served, "a", constraint=schema_of({"enum": ["def", 1]}), **THINKING)
    assert said.reasoning == "abc"
    assert json.loads(said.text) in {"def", 1}


@pytest.mark.parametrize("seed", range(3))
async def test_what_a_grammar_lets_through_is_content_though_it_looks_like_a_marker(
    served: Served, seed: int
) -> None:
    values = ["</think>", "<tool_call>"]
    constraint = types_pb2.Constraint(choice=types_pb2.Constraint.Choice(values=values))
    sampling = types_pb2.SamplingParams(temperature=1.0, seed=seed)
    options = types_pb2.ReasoningOptions(enabled=True, budget_tokens=5)
    said = await ask(served, "i", constraint=constraint, reasoning=options, sampling=sampling)
    assert said.text in values


async def test_a_call_in_reasoning_is_reasoning_where_the_answer_has_to_be_one(
    served: Served,
) -> None:
    options = types_pb2.ReasoningOptions(enabled=True, budget_tokens=40)
    asked: dict[str, Any] = {**weather(), "tool_choice": choice("required"), "reasoning": options}
    said = await ask(served, "i", parallel_tool_calls=False, **asked)
    assert said.reasoning.startswith("<tool_call>")  # of several tokens, as this model writes it
    assert not said.text
    (arguments,) = said.arguments
    jsonschema.validate(arguments, SCHEMA)


@pytest.mark.parametrize("n", [1, 4])
async def test_a_constraint_holds_for_each_of_several_answers_with_stops_and_logprobs(
    served: Served, n: int
) -> None:
    request = generation_pb2.GenerateRequest(
        model="tiny",
        text="several",
        n=n,
        constraint=types_pb2.Constraint(regex="[a-f]{8}"),
        logprobs=types_pb2.LogprobOptions(top=2),
        stop=types_pb2.StopConditions(strings=["zz"]),
        sampling=types_pb2.SamplingParams(temperature=1.0, seed=3),
    )
    texts = dict.fromkeys(range(n), "")
    logprobs = 0
    async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
        async for response in RouterServiceStub(channel).Generate(request, timeout=60.0):
            if response.HasField("delta"):
                texts[response.delta.index] += response.delta.text
                logprobs += len(response.delta.logprobs.logprobs)
    assert all(len(text) == 8 and set(text) <= set("abcdef") for text in texts.values())
    assert len(set(texts.values())) > n // 4
    assert logprobs == 8 * n


async def test_b043_twenty_alternatives_are_told_where_two_tokens_may_be_drawn(
    served: Served,
) -> None:
    choice = types_pb2.Constraint.Choice(values=["a", "b"])
    request = generation_pb2.GenerateRequest(
        model="tiny",
        text="which?",
        n=2,
        constraint=types_pb2.Constraint(choice=choice),
        logprobs=types_pb2.LogprobOptions(top=20),
        sampling=types_pb2.SamplingParams(temperature=1.0, seed=5),
    )
    async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
        call = RouterServiceStub(channel).Generate(request, timeout=60.0)
        deltas = [one.delta async for one in call if one.HasField("delta")]
    assert len(deltas) == 2
    for delta in deltas:
        assert delta.text in {"a", "b"}
        told = delta.logprobs
        assert list(told.token_ids) == [ord(delta.text)]
        assert len(told.top_token_ids) == len(told.top_logprobs) == 20
        # The model's own, whatever the constraint leaves of them.
        assert all(-9999 < value < 0 for value in (*told.logprobs, *told.top_logprobs))
        assert sorted(told.top_logprobs, reverse=True) == list(told.top_logprobs)


B037 = {
    "an unknown type": {"type": "nope"},
    "a reference to nowhere": {"$ref": "#/nowhere"},
    "a broken regex": {"type": "string", "pattern": "("},
    "a long string": {"type": "string", "minLength": 100_000},
    "names of properties": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "patterns of properties": {"type": "object", "patternProperties": {"^a": {"type": "null"}}},
    "itself": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "a tree": {"type": "array", "items": {"$ref": "#"}},
    "a large enumeration": {"enum": [f"{number:x}" * 8 for number in range(30_000)]},
}


@pytest.mark.parametrize("name", B037)
async def test_b037_a_bad_schema_is_refused_in_time_and_disturbs_nobody(
    served: Served, name: str
) -> None:
    beside = asyncio.ensure_future(served.completed("script", ENDLESS, max_tokens=60))
    began_s = time.monotonic()
    try:
        said = await ask(served, "x", "tiny", constraint=schema_of(B037[name]), stop=limit(5))
    except grpc.aio.AioRpcError as raised:
        error = RemoteError(raised)
        assert error.status_code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.field == "constraint.json_schema"
    else:
        assert said.reason in {"length", "stop", "grammar_complete"}
    assert time.monotonic() - began_s < 5.0
    assert (await beside).text == "abc " * 15


async def test_b037_a_schema_of_2000_levels_is_refused(served: Served) -> None:
    deep = '{"type":"array","items":' * 2000 + "{}" + "}" * 2000
    constraint = types_pb2.Constraint(json_schema=deep)
    assert await refused(served, "x", constraint=constraint) == "constraint.json_schema"


@pytest.mark.parametrize(
    "constraint", [schema_of({"type": "object"}), types_pb2.Constraint(json_object=True)]
)
async def test_b039_an_object_ends_the_answer_with_its_brace(
    served: Served, constraint: types_pb2.Constraint
) -> None:
    sampling = types_pb2.SamplingParams(temperature=1.0, seed=4, logit_bias={ord("}"): 20.0})
    said = await ask(served, "x", "tiny", constraint=constraint, stop=limit(200), sampling=sampling)
    assert said.reason == "grammar_complete"
    assert said.text.endswith("}")
    assert isinstance(json.loads(said.text), dict)
    assert len(said.ids) == len(said.text)
