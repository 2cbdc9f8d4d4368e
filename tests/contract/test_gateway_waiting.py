"""Streams that wait for long: comments tell whoever listens that somebody is there."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bramley.protos.v1 import router_pb2
from bramley.router.gateway import replies
from support.gateway import HELLO, Site, error_of, events, site, unchunked
from support.http import Answer, parsed
from support.script import Script

PATH = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "BEGIN_S", 0.15)
    monkeypatch.setattr(replies, "KEEP_ALIVE_S", 0.1)


def chat(*, stream: bool = True, **labels: str) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in labels.items()}
    return {"model": "fake", "messages": HELLO, "stream": stream, "metadata": named}


@asynccontextmanager
async def asked(
    one: Site, body: dict[str, Any], *headers: str
) -> AsyncGenerator[asyncio.StreamReader]:
    """Ask, to read what comes as it comes."""
    host, _, port = one.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = [f"POST {PATH} HTTP/1.1", "host: localhost", "connection: close", *headers]
    head += ["content-type: application/json", f"content-length: {len(data)}", "", ""]
    writer.write("\r\n".join(head).encode() + data)
    try:
        yield reader
    finally:
        writer.close()


def told(answer: Answer) -> Answer:
    """The answer without its comments: what a reader of events sees."""
    return answer._replace(
        headers={}, body=unchunked(answer).replace(replies.COMMENT, b"").lstrip(b"\n")
    )


async def test_a_stream_that_waits_begins_with_comments_and_goes_on_as_ever() -> None:
    async with site(Script(prefill_s=0.8)) as one:
        answer = await one.post(PATH, chat())
        body = unchunked(answer)
        assert answer.status == 200
        assert answer.headers["x-request-id"]
        assert body.startswith(replies.COMMENT * 2)
        assert body.count(replies.COMMENT) <= 9
        assert events(told(answer))[-1] == "[DONE]"
        client: Any = one.client
        stream = await client.chat.completions.create(**chat(), max_tokens=2)
        assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"


async def test_a_stream_that_began_has_comments_where_it_pauses() -> None:
    async with site() as one, asked(one, chat(fake_stall="delta")) as reader:
        await asyncio.wait_for(reader.readuntil(b'"0 "'), 10)
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(replies.COMMENT), 10)


async def test_after_a_comment_a_failure_is_an_event() -> None:
    body = chat(fake_stall="started")
    async with site() as one, asked(one, body, "x-request-id: waits") as reader:
        begun = await asyncio.wait_for(reader.readuntil(replies.COMMENT), 10)
        await one.bench.stub.Abort(router_pb2.AbortRequest(request_ids=["waits"]))
        answer = parsed(begun + await asyncio.wait_for(reader.read(), 10))
        assert answer.status == 200
        (error,) = events(told(answer))
        assert error["error"]["code"] == "aborted"


async def test_a_failure_without_a_wait_and_an_answer_in_one_have_their_status() -> None:
    async with site(Script(prefill_s=0.4)) as one:
        failed = await one.post(PATH, chat(fake_fault="started"))
        assert (failed.status, error_of(failed)["code"]) == (500, "engine_fault")
        whole = await one.post(PATH, chat(stream=False))
        assert whole.status == 200
        assert replies.COMMENT not in unchunked(whole)
