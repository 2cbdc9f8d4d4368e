"""Chat completions over HTTP, as OpenAI's own unmodified client asks for them."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from support.gateway import HELLO, Site, events, site

PATH = "/v1/chat/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncGenerator[Site]:
    async with site() as one:
        yield one


async def streamed(one: Site, **options: Any) -> list[Any]:
    client: Any = one.client
    stream = await client.chat.completions.create(
        model="fake", messages=HELLO, stream=True, **options
    )
    return [chunk async for chunk in stream]


async def whole(one: Site, **options: Any) -> Any:
    client: Any = one.client
    return await client.chat.completions.create(model="fake", messages=HELLO, **options)


async def test_a_whole_answer(served: Site) -> None:
    answer = await whole(served, max_tokens=3)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "0 1 2 ")
    assert choice.message.tool_calls is None
    assert choice.message.refusal is None
    assert (choice.finish_reason, choice.index) == ("length", 0)
    assert (answer.model, answer.object) == ("fake", "chat.completion")
    assert answer.id == f"chatcmpl-{answer._request_id}"


async def test_a_stream_begins_with_roles_and_says_the_same(served: Site) -> None:
    chunks = await streamed(served, max_tokens=3, n=2)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    for index in (0, 1):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert (own[0].delta.role, own[0].delta.content) == ("assistant", "")
        assert [choice.delta.role for choice in own[1:]] == [None] * (len(own) - 1)
        assert "".join(choice.delta.content or "" for choice in own) == "0 1 2 "
        assert [choice.finish_reason for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == "length"
    answer = await whole(served, max_tokens=3, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.message.content for choice in answer.choices] == ["0 1 2 "] * 2


async def test_a_stream_is_server_sent_events_to_the_byte(served: Site) -> None:
    body = {"model": "fake", "messages": HELLO, "stream": True, "max_tokens": 1}
    answer = await served.post(PATH, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    role, text, end, done = events(answer)
    assert role["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert text["choices"][0]["delta"] == {"content": "0 "}
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "length")
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in (role, text, end))


@pytest.mark.parametrize("n", [1, 2])
async def test_counts_are_the_same_in_both_modes(served: Site, n: int) -> None:
    options: Any = {"max_tokens": 4, "n": n, "metadata": {"fake.reasons": "1"}}
    usage = (await whole(served, **options)).usage
    prompt = len("user: hello\n")
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 4 * n)
    assert usage.total_tokens == prompt + 4 * n
    assert usage.completion_tokens_details.reasoning_tokens == n
    assert usage.prompt_tokens_details.cached_tokens == 0
    *chunks, last = await streamed(served, **options, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == usage
    assert all(chunk.usage is None for chunk in chunks)


async def test_reasoning_is_beside_the_content(served: Site) -> None:
    options: Any = {"max_tokens": 4, "metadata": {"fake.reasons": "2"}}
    message = (await whole(served, **options)).choices[0].message
    assert (message.reasoning_content, message.content) == ("0 1 ", "2 3 ")
    deltas = [chunk.choices[0].delta for chunk in await streamed(served, **options)]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "0 1 "
    assert "".join(delta.content or "" for delta in deltas) == "2 3 "


async def test_calls_of_tools_are_told_whole_and_in_parts(served: Site) -> None:
    options: Any = {
        "max_tokens": 3,
        "metadata": {"fake.calls": "2"},
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    (choice,) = (await whole(served, **options)).choices
    assert (choice.message.content, choice.finish_reason) == ("0 ", "tool_calls")
    called = [
        (call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls
    ]
    assert called == [("c1", "f", '{"n": 1}'), ("c2", "f", '{"n": 2}')]
    chunks = await streamed(served, **options)
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or ()]
    assert [(p.index, p.id, p.type) for p in parts] == [
        (0, "c1", "function"),
        (1, "c2", "function"),
    ]
    assert [part.function.arguments for part in parts] == ['{"n": 1}', '{"n": 2}']
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_an_answer_and_its_calls_come_back_in_the_next_turn(served: Site) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    options: Any = {"max_tokens": 3, "metadata": {"fake.calls": "1"}, "tools": tools}
    message = (await whole(served, **options)).choices[0].message
    turns: Any = [
        {"role": "developer", "content": "be brief"},
        *HELLO,
        message,
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "42"}]},
    ]
    answer = await served.client.chat.completions.create(
        model="fake", messages=turns, tools=tools, max_tokens=1
    )
    assert answer.choices[0].message.content == "0 "


async def test_log_probabilities_have_each_token_s_text_and_bytes(served: Site) -> None:
    options: Any = {"max_tokens": 3, "logprobs": True, "top_logprobs": 0}
    content = (await whole(served, **options)).choices[0].logprobs.content
    assert [(one.token, one.logprob, bytes(one.bytes)) for one in content] == [
        ("0 ", 0, b"0 "),
        ("1 ", -1, b"1 "),
        ("2 ", -2, b"2 "),
    ]
    chunks = await streamed(served, **options)
    told = [one for c in chunks for one in (c.choices[0].logprobs or _None).content or ()]
    assert told == content


class _None:
    content = None


async def test_what_the_router_refuses_is_named_as_the_body_does(served: Site) -> None:
    for name, value, param in (
        ("temperature", -1, "temperature"),
        ("n", 17, "n"),
        ("top_logprobs", 21, "top_logprobs"),
        ("logit_bias", {"1": 101}, "logit_bias"),
        ("stop", ["x", ""], "stop"),
        ("max_tokens", 0, "max_tokens"),
        ("tool_choice", "required", "tool_choice"),
        ("prompt_cache_key", "k" * 257, "prompt_cache_key"),
        ("messages", [{"role": "r" * 65, "content": "x"}], "messages[0].role"),
    ):
        body = {"model": "fake", "messages": HELLO, "logprobs": True, name: value}
        for stream in (False, True):
            answer = await served.post(PATH, {**body, "stream": stream})
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["type"]) == (400, "invalid_request_error"), name
            assert error["param"] == param
            assert error["message"].startswith(f"{param}: ")
