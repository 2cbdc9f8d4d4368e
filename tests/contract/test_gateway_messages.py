"""Messages over HTTP, as Anthropic's own unmodified client asks for them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from support.gateway import HELLO, Site, site, unchunked
from support.http import fetch
from support.routing import until
from support.script import Script
from support.tokens import Tokens

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
TOOLS: Any = [{"name": "f", "input_schema": {"type": "object"}}]


class Asking(NamedTuple):
    """A site and a client of it."""

    site: Site
    client: Any

    async def whole(self, **options: Any) -> Any:
        """Ask for an answer."""
        asked = {"model": "fake", "messages": HELLO, "max_tokens": 4, **options}
        return await self.client.messages.create(**asked)

    async def streamed(self, **options: Any) -> tuple[Any, list[Any]]:
        """Ask for an answer as a stream: what the client makes of it, and the events."""
        asked = {"model": "fake", "messages": HELLO, "max_tokens": 4, **options}
        async with self.client.messages.stream(**asked) as stream:
            events = [event async for event in stream]
            return await stream.get_final_message(), events


@asynccontextmanager
async def asking(script: Script | None = None, **settings: Any) -> AsyncGenerator[Asking]:
    async with (
        site(script, **settings) as one,
        AsyncAnthropic(base_url=f"http://{one.address}", api_key="none", max_retries=0) as client,
    ):
        yield Asking(one, client)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain() -> AsyncGenerator[Asking]:
    async with asking() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def thoughtful() -> AsyncGenerator[Asking]:
    async with asking(Script(reasons=1, calls=2)) as one:
        yield one


def compared(message: Any) -> Any:
    """All of a message but what no two have in common."""
    return message.model_dump(exclude={"id", "parsed_output", "content"}, exclude_none=True), [
        block.model_dump(exclude={"parsed_output"}, exclude_none=True) for block in message.content
    ]


async def test_a_whole_answer(plain: Asking) -> None:
    answer = await plain.whole(system="be brief")
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "0 1 2 3 ")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.id == f"msg_{answer._request_id}"
    assert answer.usage.input_tokens == len("system: be brief\nuser: hello\n")
    assert answer.usage.cache_read_input_tokens == 0
    assert answer.usage.cache_creation_input_tokens == 0
    assert answer.usage.output_tokens == 4


async def test_b055_a_stream_says_the_same_as_a_whole_answer(thoughtful: Asking) -> None:
    whole = await thoughtful.whole(tools=TOOLS)
    message, events = await thoughtful.streamed(tools=TOOLS)
    assert compared(message) == compared(whole)
    assert message.usage.output_tokens_details.thinking_tokens == 1
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    calls = [(call.id, call.name, call.input) for call in whole.content[2:]]
    assert calls == [("c2", "f", {"n": 2}), ("c3", "f", {"n": 3})]
    assert whole.stop_reason == "tool_use"
    start = events[0]
    assert (start.type, start.message.usage.input_tokens) == ("message_start", 12)


async def test_an_answer_and_results_come_back_in_the_next_turn(thoughtful: Asking) -> None:
    answer = await thoughtful.whole(tools=TOOLS)
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "42", "is_error": False}
        for call in answer.content[2:]
    ]
    turns: Any = [
        *HELLO,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "so?"}]},
    ]
    again = await thoughtful.whole(messages=turns, tools=TOOLS)
    said = "user: hello\nassistant: 1 \ntool: 42\ntool: 42\nuser: so?\n"
    assert again.usage.input_tokens == len(said)


async def test_a_stream_is_server_sent_events_to_the_byte(plain: Asking) -> None:
    body = {"model": "fake", "messages": HELLO, "max_tokens": 1, "stream": True}
    answer = await plain.site.post(PATH, body, anthropic_version="2023-06-01", anthropic_beta="x")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    blocks = unchunked(answer).decode().removesuffix("\n\n").split("\n\n")
    names = [block.split("\n")[0] for block in blocks]
    assert names == [
        "event: message_start",
        "event: ping",
        "event: content_block_start",
        "event: content_block_delta",
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
    ]
    delta = {"type": "text_delta", "text": "0 "}
    told = {"type": "content_block_delta", "index": 0, "delta": delta}
    assert blocks[3] == "event: content_block_delta\ndata: " + json.dumps(
        told, separators=(",", ":")
    )


async def test_counted_are_the_tokens_that_a_generation_reads(plain: Asking) -> None:
    prompt: Any = {
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [*HELLO, {"role": "assistant", "content": "It is"}],
        "tools": TOOLS,
        "tool_choice": {"type": "none"},
        "thinking": {"type": "adaptive"},
    }
    counted = await plain.client.messages.count_tokens(model="fake", **prompt)
    usage = (await plain.whole(**prompt)).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert counted.input_tokens > len("be brief")


async def test_what_is_refused_has_anthropic_s_shape(plain: Asking) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await plain.whole(model="nobody")
    error: Any = unknown.value
    assert (error.type, error.error_code) == ("not_found_error", "not_found")
    for options, path in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"stop_sequences": ["x", ""]}, "stop_sequences"),
        ({"tools": [*TOOLS, *TOOLS]}, r"tools\[1\].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"metadata": {"user_id": "u" * 257}}, "metadata.user_id"),
        ({"extra_body": {"wish": 1}}, "wish"),
    ):
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match=path) as refused:
                await plain.whole(**options, stream=stream)
            assert refused.value.type == "invalid_request_error"


async def test_no_other_path_or_method_answers_in_another_shape(plain: Asking) -> None:
    for path, method, status, kind in (
        ("/v1/messages/batches", "POST", 404, "not_found_error"),
        (PATH, "GET", 405, "invalid_request_error"),
        (COUNT, "GET", 405, "invalid_request_error"),
    ):
        answer = await fetch(plain.site.address, path, method=method)
        told = json.loads(unchunked(answer))
        assert (answer.status, told["type"], told["error"]["type"]) == (status, "error", kind)
    answer = await plain.site.post("/v1/nowhere", {})
    assert "code" in json.loads(unchunked(answer))["error"]


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_bodies_are_read_strictly(plain: Asking, path: str) -> None:
    for body in (b"", b"[]", b'{"model": "fake", "model": "fake"}', b"[" * 100_000):
        answer = await plain.site.post(path, body)
        told = json.loads(unchunked(answer))
        assert (answer.status, told["error"]["type"]) == (400, "invalid_request_error")
        assert told["request_id"] is None
    assert (await plain.site.post(path, {}, content_type="text/plain")).status == 415


async def test_a_failure_before_the_first_token_has_a_status_and_our_id() -> None:
    async with asking(Script(actions={"fault": "started"})) as one:
        for stream in (False, True):
            with pytest.raises(anthropic.InternalServerError) as failed:
                await one.whole(stream=stream)
            body: Any = failed.value.body
            assert body["error"]["type"] == "api_error"
            assert body["request_id"] == failed.value.request_id


async def test_a_failure_after_it_is_an_event() -> None:
    async with asking(Script(actions={"fault": "delta"})) as one:
        with pytest.raises(anthropic.APIStatusError) as failed:
            await one.streamed()
        body: Any = failed.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "api_error")
        assert body["request_id"] == failed.value.request_id


async def test_b057_a_client_that_leaves_takes_its_request_along() -> None:
    async with asking(Script(actions={"stall": "delta"})) as one:
        worker = one.site.bench.node.workers["fake"]
        async with one.client.messages.stream(model="fake", messages=HELLO, max_tokens=4) as stream:
            async for event in stream:
                if event.type == "text":
                    break
            assert worker.running == 1
        await until(lambda: worker.running == 0)
        await until(lambda: len(one.site.bench.router.server.registry) == 0)


async def test_keys_are_the_router_s_own_tokens(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    key = tokens.add("alice")[0][1].removeprefix("Bearer ")
    async with asking(auth=tokens.settings) as one:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await one.whole()
        assert refused.value.type == "authentication_error"
        with pytest.raises(anthropic.AuthenticationError):
            await one.client.messages.count_tokens(model="fake", messages=HELLO)
        both: Any = ({"api_key": key}, {"auth_token": key})
        for keys in both:
            base = f"http://{one.site.address}"
            async with AsyncAnthropic(base_url=base, max_retries=0, **keys) as client:
                assert (await Asking(one.site, client).whole()).stop_reason == "max_tokens"
