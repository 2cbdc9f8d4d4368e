"""Public cases of texts, ends, limits and counts over HTTP, as OpenAI's own client sees them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from support.http import fetch
from support.served import ENDS, SAYS, Served


@pytest.fixture
async def client(served: Served) -> AsyncGenerator[Any]:
    base = f"http://{served.cluster.node.addresses['http']}/v1"
    async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as made:
        yield made


async def texts(client: Any, said: str, **options: Any) -> list[tuple[str, str]]:
    """Ask as a completion and in a chat, whole and streamed: each text, and why it ended."""
    asked: Any = {"model": "script", "temperature": 0, "max_tokens": 64, **options}
    chat = {**asked, "messages": [{"role": "user", "content": said}]}
    plain = {**asked, "prompt": said}
    found: list[tuple[str, str]] = []
    (choice,) = (await client.completions.create(**plain)).choices
    found.append((choice.text, choice.finish_reason))
    parts = [
        chunk.choices[0] async for chunk in await client.completions.create(**plain, stream=True)
    ]
    found.append(("".join(part.text for part in parts), parts[-1].finish_reason))
    (choice,) = (await client.chat.completions.create(**chat)).choices
    found.append((choice.message.content, choice.finish_reason))
    stream = await client.chat.completions.create(**chat, stream=True)
    parts = [chunk.choices[0] async for chunk in stream]
    text = "".join(part.delta.content or "" for part in parts)
    found.append((text, parts[-1].finish_reason))
    return found


@pytest.mark.parametrize("byte", ["\x01", "\x02", "\x03", "\x04"])
async def test_b001_b003_every_way_says_the_text_to_the_letter(client: Any, byte: str) -> None:
    assert await texts(client, byte) == [(SAYS[byte], "stop")] * 4


@pytest.mark.parametrize(
    ("byte", "stop", "text"),
    [
        ("\x05", ["own fox"], "The quick br"),
        ("\x06", ["ab", "abcd"], "xx"),
        ("\x07", ["</end>"], "a </en b"),
        ("\x08", ["😀"], "one "),
    ],
)
async def test_b004_a_stop_string_ends_the_text_before_it(
    client: Any, byte: str, stop: list[str], text: str
) -> None:
    assert await texts(client, byte, stop=stop) == [(text, "stop")] * 4


async def test_b006_every_end_token_ends_the_text(client: Any) -> None:
    found = await asyncio.gather(*[texts(client, byte) for byte in ENDS])
    assert found == [[("hi", "stop")] * 4] * len(ENDS)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**8}, "prompt"),  # both do not fit the context
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 1000}, "n"),
        ({"prompt": "a", "n": 2**31}, "n"),
        ({"prompt": "a", "n": 1.5}, "n"),
        ({"prompt": "a", "n": "4"}, "n"),
        ({"prompt": "a", "logprobs": 10**6}, "logprobs"),
        ({"prompt": "a", "stop": ["x"] * 10**5}, "stop"),
        ({"prompt": "a", "logit_bias": {"999999": 1}}, "logit_bias"),
    ],
)
async def test_b008_b056_what_cannot_be_is_refused_by_its_field(
    client: Any, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.post("/completions", body={"model": "tiny", **body}, cast_to=object)
    assert (caught.value.param or "").startswith(param), caught.value


async def test_b008_empty_conversations_are_refused_and_one_token_is_given(client: Any) -> None:
    with pytest.raises(BadRequestError):
        await client.chat.completions.create(model="tiny", messages=[])
    one = await client.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert one.usage.completion_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "asked"), [(64, 1), (65, 1), (500, 1), (60, 10)])
async def test_b009_what_exceeds_the_context_is_refused_before_any_event(
    client: Any, prompt: int, asked: int, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.completions.create(
            model="small", prompt="x" * prompt, max_tokens=asked, stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    assert f"{prompt} prompt tokens" in str(caught.value)
    assert "64" in str(caught.value)


async def test_b043_what_cannot_be_drawn_is_strict_json(served: Served) -> None:
    for stream in (False, True):
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 3,
            "logprobs": True,
            "top_logprobs": 20,
            "logit_bias": {"97": -100, "98": 100},
            "stream": stream,
        }
        data = json.dumps(body).encode()
        answer = await fetch(
            served.cluster.node.addresses["http"],
            "/v1/chat/completions",
            method="POST",
            headers={"content-type": "application/json", "content-length": str(len(data))},
            body=data,
        )
        assert answer.status == 200
        for word in (b"NaN", b"Infinity"):
            assert word not in answer.body
        assert b'"top_logprobs":[{' in answer.body.replace(b" ", b"")


async def test_b055_cached_tokens_are_the_same_in_every_mode(served: Served, client: Any) -> None:
    said = "forty tokens and a few more of a prompt that nobody else asks for: b055"
    options: Any = {"model": "tiny", "temperature": 0, "max_tokens": 2}
    first = await client.completions.create(**options, prompt=said)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    expected = len(said) - 1  # a byte is a token, and one is left to compute
    for n in (1, 2):
        whole = await client.completions.create(**options, prompt=said, n=n)
        stream = await client.completions.create(
            **options, prompt=said, n=n, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]
        assert last.choices == []
        assert {chunk.usage for chunk in chunks} == {None}
        for usage in (whole.usage, last.usage):
            assert usage.prompt_tokens == len(said)
            assert usage.prompt_tokens_details.cached_tokens == expected
    told = await served.completed("tiny", said, max_tokens=2)
    assert sum(told.usage.cached_tokens.values()) == expected
