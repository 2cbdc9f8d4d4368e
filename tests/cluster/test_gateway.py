"""Clients of OpenAI and Anthropic and real workers: texts, reasoning, calls and counts."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr

from support.served import SAYS, Served

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture
async def client(served: Served) -> AsyncGenerator[Any]:
    base = f"http://{served.cluster.node.addresses['http']}/v1"
    async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as made:
        yield made


async def both(client: Any, said: str, **options: Any) -> tuple[Any, list[Any]]:
    """Ask for an answer whole, and as a stream."""
    asked = {
        "model": "script",
        "messages": [{"role": "user", "content": said}],
        "temperature": 0,
        **options,
    }
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, **counted)
    return whole, [chunk async for chunk in stream]


async def test_reasoning_content_and_counts_are_the_same_in_both_modes(client: Any) -> None:
    whole, (*chunks, last) = await both(client, "b")
    (choice,) = whole.choices
    assert (choice.message.reasoning_content, choice.message.content) == ("abc", "def")
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "abc"
    assert "".join(delta.content or "" for delta in deltas) == "def"
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason == "stop"
    assert whole.usage.completion_tokens == last.usage.completion_tokens
    assert last.usage.completion_tokens_details.reasoning_tokens > 0


async def test_calls_are_the_same_in_both_modes(client: Any) -> None:
    whole, (*chunks, _) = await both(client, "d", tools=TOOLS)
    (choice,) = whole.choices
    (call,) = choice.message.tool_calls
    assert choice.message.content.strip() == "Let me see."
    assert call.function.name == "weather"
    assert choice.finish_reason == "tool_calls"
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or ()]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert parts[0].id
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_b044_the_bytes_of_all_tokens_are_the_text(client: Any) -> None:
    answer = await client.completions.create(
        model="script", prompt="\x01", temperature=0, logprobs=2, max_tokens=60
    )
    assert answer.choices[0].text == SAYS["\x01"]
    whole, _ = await both(client, "b", logprobs=True, top_logprobs=3)
    content = whole.choices[0].logprobs.content
    assert b"def" in b"".join(bytes(one.bytes) for one in content)
    assert len(content) == whole.usage.completion_tokens
    for one in content:
        best, *others = one.top_logprobs
        assert (best.token, best.bytes, best.logprob) == (one.token, one.bytes, one.logprob)
        assert all(other.logprob <= best.logprob for other in others)
        assert len(others) == 2


async def test_the_next_turn_of_a_response_finds_what_was_computed(client: Any) -> None:
    said = "x" * 300
    first = await client.responses.create(model="script", input=f"{said}b", temperature=0)
    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert first.output_text == "def"
    stream = await client.responses.create(
        model="script", input="d", temperature=0, previous_response_id=first.id, stream=True
    )
    *_, last = [event async for event in stream]
    assert last.type == "response.completed"
    assert last.response.output_text.startswith("Let me see.")
    usage = last.response.usage
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens
    assert usage.input_tokens > first.usage.input_tokens > len(said)


@pytest.fixture
async def messages(served: Served) -> AsyncGenerator[Any]:
    base = f"http://{served.cluster.node.addresses['http']}"
    async with AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as made:
        yield made.messages


def said(message: Any) -> list[Any]:
    """A message's blocks, without what is made anew each time."""
    return [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]


@pytest.mark.parametrize("thinking", ["adaptive", "disabled"])
async def test_messages_are_the_same_in_both_modes_and_their_prompt_is_counted(
    messages: Any, thinking: str
) -> None:
    prompt: Any = {
        "model": "script",
        "system": "be brief",
        "messages": [{"role": "user", "content": "e"}],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        "thinking": {"type": thinking},
    }
    asked = {**prompt, "max_tokens": 300, "extra_body": {"temperature": 0}}
    counted = (await messages.count_tokens(**prompt)).input_tokens
    whole = await messages.create(**asked)
    async with messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "tool_use", "tool_use"]
    assert [call.input["city"] for call in whole.content[1:]] == ["Oslo", "Rome"]
    assert said(streamed) == said(whole)
    for answer in (whole, streamed):
        assert answer.stop_reason == "tool_use"
        assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        for call in whole.content[1:]
    ]
    prompt["messages"] += [
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": results},
    ]
    # Of calls this template writes nothing.
    added = len("12 degrees") * len(results)
    assert (await messages.count_tokens(**prompt)).input_tokens == counted + added


async def test_langchain_calls_a_tool_and_brings_back_what_it_said(served: Served) -> None:
    base = f"http://{served.cluster.node.addresses['http']}/v1"
    made: Any = ChatOpenAI(model="script", base_url=base, api_key=SecretStr("none"), temperature=0)
    model = made.bind_tools(TOOLS)
    turns: list[Any] = [HumanMessage("d")]
    answer = await model.ainvoke(turns)
    (call,) = answer.tool_calls
    assert call["name"] == "weather"
    whole = None
    async for chunk in model.astream(turns):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("weather", call["args"])]
    turns += [answer, ToolMessage("19 degrees", tool_call_id=call["id"]), HumanMessage("c")]
    assert (await model.ainvoke(turns)).content == "def"
