"""Bad input through the whole cluster: each a clear status that names the field."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from bramley.client import replies
from bramley.client.events import Completion
from bramley.client.requests import Options
from bramley.common.errors import BramleyError
from bramley.common.rpc import MESSAGE_BYTES_MAX, open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import ENDLESS, Served

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
async def expected(served: Served) -> Completion:
    return await served.completed("tiny", PROMPT, max_tokens=12)


@pytest.fixture(autouse=True)
async def the_next_request_is_served(served: Served, expected: Completion) -> AsyncGenerator[None]:
    """A healthy request runs beside each bad one, and another after it."""
    beside = asyncio.create_task(served.completed("tiny", PROMPT, max_tokens=12))
    yield
    for completion in (await beside, await served.completed("tiny", PROMPT, max_tokens=12)):
        assert (completion.text, completion.token_ids) == (expected.text, expected.token_ids)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("text", {"prompt": ""}),
    ("token_ids", {"token_ids": []}),
    ("chat.messages", {"messages": []}),
    ("token_ids", {"token_ids": [1, 260]}),
    ("token_ids", {"token_ids": [2**32 - 1]}),
    ("stop.max_tokens", {"prompt": "x", "max_tokens": 0}),
    ("stop.max_tokens", {"prompt": "x", "max_tokens": -1}),
    ("sampling.temperature", {"prompt": "x", "temperature": math.nan}),
    ("sampling.temperature", {"prompt": "x", "temperature": -1.0}),
    ("sampling.top_p", {"prompt": "x", "top_p": 1.01}),
    ("sampling.top_k", {"prompt": "x", "top_k": -2}),
    ("stop.strings", {"prompt": "x", "stop": ""}),
]


@pytest.mark.parametrize(("field", "options"), BAD)
async def test_b008_b041_a_bad_field_is_named(
    served: Served, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(RemoteError) as raised:
        await served.client.complete("tiny", **options)
    assert raised.value.status_code is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.field == field


@pytest.mark.parametrize("depth", [16, 30, 31, 32, 33, 44, 45, 46, 47, 48])
async def test_deep_template_kwargs_never_make_a_worker_look_dead(
    served: Served, depth: int
) -> None:
    value = struct_pb2.Value(bool_value=True)
    for _ in range(depth):
        value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
    chat = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="\x02")])
    chat.template_kwargs.fields["enable_thinking"].CopyFrom(value)
    with contextlib.suppress(RemoteError):  # served, or refused
        await asyncio.wait_for(_chat(served, chat), 10.0)
    assert (await served.client.get_model("script")).state == "ready"


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_template_kwargs_of_no_json_are_refused(served: Served, number: float) -> None:
    chat = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="\x02")])
    chat.template_kwargs.update({"odd": number})
    with pytest.raises(RemoteError) as raised:
        await _chat(served, chat)
    assert raised.value.field == "chat.template_kwargs"


async def _chat(served: Served, chat: types_pb2.ChatInput) -> None:
    request = generation_pb2.GenerateRequest(model="script", chat=chat)
    with replies.remote_errors():
        async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
            async for _ in RouterServiceStub(channel).Generate(request):
                pass


async def test_tokenize_counts_what_exceeds_the_context(served: Served) -> None:
    assert len(await served.client.tokenize("small", "x" * 500)) == 500


async def test_an_unknown_model_is_not_found(served: Served) -> None:
    with pytest.raises(RemoteError) as raised:
        await served.completed("no such model", PROMPT)
    assert raised.value.status_code is grpc.StatusCode.NOT_FOUND
    assert "no such model" in raised.value.message


async def test_b008_one_token_is_one_token(served: Served) -> None:
    one = await served.completed("tiny", PROMPT, max_tokens=1)
    assert (len(one.token_ids), one.usage.completion_tokens) == (1, 1)


@pytest.mark.parametrize(
    ("prompt", "asked", "fits"),
    [(63, 1, True), (64, 1, False), (65, 1, False), (500, 1, False), (60, 10, False)],
)
async def test_b009_what_exceeds_the_context_is_refused_with_both_numbers(
    served: Served, prompt: int, asked: int, fits: bool
) -> None:
    if fits:
        one = await served.completed("small", "x" * prompt, max_tokens=asked)
        assert len(one.token_ids) == asked
        return
    with pytest.raises(RemoteError) as raised:
        await served.completed("small", "x" * prompt, max_tokens=asked)
    assert raised.value.status_code is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert (raised.value.facts["prompt"], raised.value.facts["limit"]) == (str(prompt), "64")
    assert (await served.client.get_model("small")).state == "ready"


async def test_a_top_k_above_the_vocabulary_means_all_of_it(served: Served) -> None:
    answers = [
        await served.client.complete("tiny", PROMPT, seed=3, top_k=top_k, max_tokens=12)
        for top_k in (0, 2**31 - 1)
    ]
    assert answers[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize("temperature", [1e-3, 1e-5, 1e-9, 1e-40])
async def test_b041_a_very_small_temperature_is_greedy(
    served: Served, expected: Completion, temperature: float
) -> None:
    options = Options(
        temperature=temperature, top_p=1e-9, top_k=1, min_p=1.0, seed=1, max_tokens=12
    )
    one = await served.client.complete("tiny", PROMPT, **options)
    assert one.token_ids == expected.token_ids


async def test_b067_five_mebibytes_of_prompt_are_answered_with_the_limit(served: Served) -> None:
    with pytest.raises(RemoteError) as raised:
        await served.completed("tiny", "x" * (5 << 20), max_tokens=1)
    assert raised.value.reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_b067_a_message_over_the_limit_is_refused_before_it_is_read(served: Served) -> None:
    # A client of its own, without our client's limit on what it sends.
    unlimited = [("grpc.max_send_message_length", -1)]
    address = served.cluster.node.addresses["grpc"]
    async with grpc.aio.insecure_channel(address, options=unlimited) as channel:
        method = "/bramley.protos.v1.RouterService/Generate"
        generate: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
        call = generate(b"\x22" + _length(MESSAGE_BYTES_MAX) + b"x" * MESSAGE_BYTES_MAX)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await served.client.get_model("tiny")).state == "ready"


def _length(number: int) -> bytes:
    """Encode a protobuf varint."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


async def test_b057_a_client_that_goes_away_frees_its_row(served: Served) -> None:
    for deltas in (0, 1, 3) * 5:
        events = served.client.generate("script", ENDLESS, max_tokens=3000)
        async for event in events:
            seen = getattr(event, "completion_tokens", 0)
            if seen >= deltas:
                break
        await events.aclose()
    await asyncio.wait_for(served.idle("script"), 5.0)
    assert (await served.completed("script", "\x02")).text == " hi"


async def test_b057_a_client_that_goes_away_during_prefill_frees_its_row(served: Served) -> None:
    for _ in range(5):
        with pytest.raises((RemoteError, BramleyError)):
            await served.client.complete("tiny", "y" * 4000, max_tokens=50, timeout_s=0.05)
    await asyncio.wait_for(served.idle("tiny"), 5.0)
