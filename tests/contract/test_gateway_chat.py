"""Chat completions over HTTP, as OpenAI's own unmodified client asks for them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.routing import Bench, routed
from support.script import Script

HTTP = "127.0.0.1:0"
HELLO: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def chatting(
    script: Script | None = None, **settings: Any
) -> AsyncGenerator[tuple[AsyncOpenAI, Bench]]:
    async with (
        routed(script, http=HTTP, **settings) as bench,
        AsyncOpenAI(
            base_url=f"http://{bench.router.addresses['http']}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        yield client, bench


async def test_a_whole_answer() -> None:
    async with chatting() as (client, _):
        answer = await client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3)
        (choice,) = answer.choices
        assert choice.message.content == "0 1 2 "
        assert (choice.finish_reason, choice.index) == ("length", 0)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len("user: hello\n")
        assert answer.usage.completion_tokens == 3
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
        assert (answer.model, answer.object) == ("fake", "chat.completion")
        assert answer.id.startswith("chatcmpl-r1-")


async def test_a_stream_says_the_same() -> None:
    async with chatting() as (client, _):
        stream = await client.chat.completions.create(
            model="fake", messages=HELLO, max_tokens=3, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "0 1 2 "
        assert chunks[-1].choices[0].finish_reason == "length"
        assert all(chunk.usage is None for chunk in chunks)


async def test_an_unknown_model_is_404() -> None:
    async with chatting() as (client, _):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(
                    model="nobody", messages=HELLO, stream=stream
                )
            assert caught.value.code == "model_not_found"
