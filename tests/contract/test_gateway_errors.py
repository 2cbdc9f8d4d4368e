"""What HTTP clients are told when it goes wrong, and what becomes of their requests."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from bramley.protos.v1 import router_pb2
from bramley.router import http
from bramley.router.classes import Classes, DefaultRule
from bramley.router.gateway import calls, generating, replies
from support.gateway import HELLO, Site, error_of, events, site
from support.routing import until
from support.script import Script
from support.tokens import Metadata, Tokens

PATH = "/v1/chat/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncGenerator[Site]:
    async with site() as one:
        yield one


def chat(stream: bool = False, **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": HELLO, "stream": stream, **fields}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("labels", "kind", "reason"),
    [
        ({"fake.bad_field": "prepare"}, openai.BadRequestError, "invalid_field"),
        ({"fake.oom": "started"}, openai.InternalServerError, "device_oom"),
        ({"fake.fault": "started"}, openai.InternalServerError, "engine_fault"),
        ({"fake.end": "started"}, openai.InternalServerError, "worker_lost"),
    ],
)
async def test_b053_a_failure_before_the_first_byte_has_its_status(
    served: Site,
    stream: bool,
    labels: dict[str, str],
    kind: type[openai.APIStatusError],
    reason: str,
) -> None:
    with pytest.raises(kind) as caught:
        await served.client.chat.completions.create(
            model="fake", messages=HELLO, metadata=labels, stream=stream
        )
    assert caught.value.code == reason


async def test_b053_a_failure_after_the_first_byte_is_an_event_and_the_end(served: Site) -> None:
    body = chat(stream=True, metadata={"fake.fault": "delta"}, max_tokens=8)
    answer = await served.post(PATH, body)
    *chunks, error = events(answer)
    assert answer.status == 200
    assert chunks
    assert error["error"]["code"] == "engine_fault"
    client: Any = served.client
    stream = await client.chat.completions.create(**body)
    with pytest.raises(openai.APIError, match="NaN"):
        [chunk async for chunk in stream]
    assert (await served.post(PATH, {**body, "stream": False})).status == 500


async def test_b053_an_end_without_a_token_is_an_empty_answer(served: Site) -> None:
    labels = {"fake.finish": "started"}
    for stream in (False, True):
        answer = await served.post(PATH, chat(stream, metadata=labels))
        assert answer.status == 200
    assert events(answer)[-1] == "[DONE]"
    assert events(answer)[-2]["choices"][0]["finish_reason"] == "stop"
    whole: Any = await served.client.chat.completions.create(
        model="fake", messages=HELLO, metadata=labels
    )
    assert (whole.choices[0].message.content, whole.usage.prompt_tokens) == ("", 5)


async def test_an_unknown_model_and_path_and_method(served: Site) -> None:
    answer = await served.post(PATH, {**chat(), "model": "nobody"})
    assert (answer.status, error_of(answer)["code"]) == (404, "model_not_found")
    for path in ("/v1/nowhere", "/chat/completions"):
        answer = await served.post(path, chat())
        assert (answer.status, error_of(answer)["code"]) == (404, "unknown_path")
    answer = await served.post("/v1/models", chat())
    assert (answer.status, error_of(answer)["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"\xef\xbb\xbf{}", "body"),
        (b'{"model": "\xff"}', "body"),
        (b'{"model": "fake", "messages": [], "n": NaN}', "body"),
        (b'{"model": "fake", "messages": [], "temperature": 1e999}', "body"),
        (b'{"model": "fake", "model": "other", "messages": []}', "body"),
        (b'{"model": "fake"}', "messages"),
        (b'{"model": "fake", "messages": []}', "messages"),
        (b'{"model": "fake", "messages": [], "speed": 1}', "speed"),
        (b'{"model": "fake", "messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
        (b'{"model": "fake", "messages": [{"role": "user"}]}', "messages[0].content"),
        (b"[" * 100_000, "body"),
    ],
)
async def test_bodies_are_read_strictly(served: Site, body: bytes, param: str) -> None:
    answer = await served.post(PATH, body)
    assert (answer.status, error_of(answer)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("model", "HALF", "model"),
        ("user", "HALF", "user"),
        ("stop", ["HALF"], "stop[0]"),
        ("messages", [{"role": "user", "content": "HALF"}], "messages[0].content"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": "HALF"}]}],
            "messages[0].content[0].text",
        ),
        ("tools", [{"type": "function", "function": {"name": "HALF"}}], "tools[0].function.name"),
        ("metadata", {"HALF": "x"}, "metadata"),
    ],
)
async def test_b051_half_a_pair_is_refused_by_its_field(
    served: Site, field: str, value: Any, param: str
) -> None:
    prepared = served.bench.node.workers["fake"].prepared
    before = len(prepared)
    for stream in (False, True):
        sent = json.dumps(chat(stream, **{field: value})).replace("HALF", r"x\ud83d")
        answer = await served.post(PATH, sent.encode())
        assert (answer.status, error_of(answer)["param"]) == (400, param)
        assert "Error" not in error_of(answer)["message"]
    assert len(prepared) == before


LONG = "a" * (1 << 20)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": LONG}}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATH, {"response_format": FORMAT}, "response_format"),
        (PATH, {"guided_regex": LONG}, "guided_regex"),
        (PATH, {"guided_choice": [LONG]}, "guided_choice"),
        (PATH, {"structured_outputs": {"json": {"const": LONG}}}, "structured_outputs.json"),
        ("/v1/completions", {"guided_json": {"const": LONG}}, "guided_json"),
        ("/v1/completions", {"structured_outputs": {"regex": LONG}}, "structured_outputs.regex"),
        ("/v1/completions", {"logprobs": 21}, "logprobs"),
    ],
)
async def test_what_the_router_refuses_is_named_as_the_body_named_it(
    served: Site, path: str, fields: dict[str, Any], param: str
) -> None:
    asked = {"messages": HELLO} if path == PATH else {"prompt": "x"}
    answer = await served.post(path, {"model": "fake", **asked, **fields})
    assert (answer.status, error_of(answer)["param"]) == (400, param)
    assert error_of(answer)["message"].startswith(f"{param}: ")


async def test_b051_a_whole_pair_and_a_nul_are_text(served: Site) -> None:
    said = chat(messages=[{"role": "user", "content": "PAIR"}], metadata={"fake.echo": "true"})
    sent = json.dumps(said).replace("PAIR", r"\ud83d\ude00\u0000")
    answer = await served.post(PATH, sent.encode())
    assert answer.status == 200


async def test_what_is_no_json_by_its_type_is_not_read(served: Site) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=x"):
        answer = await served.post(PATH, chat(), content_type=kind)
        assert answer.status == 415
    assert (await served.post(PATH, chat(), content_encoding="gzip")).status == 415
    kind = "application/json; charset=utf-8"
    assert (await served.post(PATH, chat(), content_type=kind)).status == 200


async def test_too_large_a_body_is_refused(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BODY_BYTES_MAX", 1000)
    answer = await served.post(PATH, chat(user="x" * 1000))
    assert (answer.status, error_of(answer)["code"]) == (413, "body_too_large")
    monkeypatch.setattr(calls, "BODIES_BYTES_MAX", 10)
    answer = await served.post(PATH, chat())
    assert (answer.status, error_of(answer)["code"]) == (429, "too_many_bytes")
    monkeypatch.undo()
    assert (await served.post(PATH, chat())).status == 200


async def test_bodies_in_pieces_are_bounded_too(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BODY_BYTES_MAX", 1000)
    reader, writer = await connected(served)
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"3e8\r\n" + b" " * 1000)
    writer.write(b"\r\n3e8\r\n" + b" " * 1000 + b"\r\n")  # and no end
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 413 ")
    writer.close()


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)


async def connected(one: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = one.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def asked(
    one: Site, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request, and read nothing yet."""
    reader, writer = await connected(one)
    data = json.dumps(body).encode()
    writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(data) + data)
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("point", ["prepare", "started", "delta"])
async def test_b057_a_client_that_leaves_takes_its_request_along(stream: bool, point: str) -> None:
    async with site() as one:
        registry = one.bench.router.server.registry
        reader, writer = await asked(one, chat(stream, metadata={"fake.stall": point}))
        if stream and point == "delta":
            assert b"200 OK" in await reader.readline()
        worker = one.bench.node.workers["fake"]
        await until(lambda: bool(worker.prepared if point == "prepare" else worker.generated))
        writer.close()
        await until(lambda: len(registry) == 0)
        await until(lambda: worker.running == 0)


async def test_a_stream_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    async with site(Script(interval_s=0.02)) as one:
        answer = await one.post(PATH, chat(stream=True, max_tokens=40))
        assert events(answer)[-1] == "[DONE]"
        assert (await one.post(PATH, chat(max_tokens=40))).status == 200


async def test_a_body_that_does_not_come_ends_the_connection(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BODY_S", 0.2)
    reader, writer = await connected(served)
    writer.write(HEAD + b"content-length: 100\r\n\r\n{")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_who_does_not_read_is_left_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "SEND_S", 0.5)
    monkeypatch.setattr(generating, "SEND_S", 0.5)
    async with site(Script(context_tokens=2_000_000)) as one:
        body = chat(stream=True, max_tokens=1_000_000)
        _, writer = await asked(one, body)
        worker = one.bench.node.workers["fake"]
        await until(lambda: worker.running == 1)
        await until(lambda: worker.running == 0)
        await until(lambda: len(one.bench.router.server.registry) == 0)
        writer.close()
        assert (await one.post(PATH, chat())).status == 200


async def test_a_router_that_stops_says_so_to_its_streams() -> None:
    async with site() as one:
        reader, writer = await asked(one, chat(stream=True, metadata={"fake.stall": "delta"}))
        await asyncio.wait_for(reader.readuntil(b'"0 "'), 10)
    rest = await asyncio.wait_for(reader.read(), 10)
    assert b'data: {"error":' in rest
    assert b"[DONE]" not in rest
    writer.close()


async def test_a_full_queue_is_429_and_says_when_to_come_back() -> None:
    rules = Classes(default=DefaultRule(queue_max=1))
    async with site(Script(max_rows=1), classes=rules) as one:
        worker = one.bench.node.workers["fake"]
        stalled = chat(metadata={"fake.stall": "started"})
        _, first = await asked(one, stalled)
        await until(lambda: worker.running == 1)
        _, second = await asked(one, stalled)
        await until(lambda: len(one.bench.router.server.registry) == 2)
        await until(lambda: len(worker.prepared) == 2)
        answer = await one.post(PATH, chat())
        assert (answer.status, error_of(answer)["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        first.close()
        second.close()


async def test_an_id_in_flight_is_409_and_a_time_that_has_passed_504() -> None:
    async with site() as one:
        stalled = chat(metadata={"fake.stall": "started"})
        waiting = asyncio.create_task(
            one.post(PATH, stalled, x_request_id="mine", x_request_timeout="2")
        )
        worker = one.bench.node.workers["fake"]
        await until(lambda: worker.running == 1)
        answer = await one.post(PATH, chat(), x_request_id="mine")
        assert (answer.status, error_of(answer)["code"]) == (409, "already_exists")
        late = await waiting
        assert (late.status, error_of(late)["code"]) == (504, "deadline_exceeded")
        wrong = await one.post(PATH, chat(), x_request_timeout="soon")
        assert (wrong.status, error_of(wrong)["param"]) == (400, "x-request-timeout")


async def test_an_abort_is_told(served: Site) -> None:
    stalled = chat(metadata={"fake.stall": "started"})
    worker = served.bench.node.workers["fake"]
    waiting = asyncio.create_task(served.post(PATH, stalled, x_request_id="to-be-ended"))
    await until(lambda: worker.running == 1)
    await served.bench.stub.Abort(router_pb2.AbortRequest(request_ids=["to-be-ended"]))
    answer = await waiting
    assert (answer.status, error_of(answer)["code"]) == (499, "aborted")


async def test_tokens_are_the_router_s_own_in_either_header(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    good, other = key_of(tokens.add("alice")), key_of(tokens.add("bob", 'models = ["other"]'))
    async with site(auth=tokens.settings) as one:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": f"Bearer {good}\u00e9"}, 401),
            ({"authorization": "Bearer " + "x" * 2000}, 401),
            ({"x_api_key": "wrong"}, 401),
            ({"x_api_key": other}, 403),
            ({"x_api_key": good, "authorization": f"Bearer {other}"}, 401),
            ({"x_api_key": good}, 200),
            ({"authorization": f"Bearer {good}"}, 200),
            ({"x_api_key": good, "authorization": f"Bearer {good}"}, 200),
        ):
            answer = await one.post(PATH, chat(), **headers)
            assert answer.status == status, headers
            assert good.encode() not in answer.body
            assert ("www-authenticate" in answer.headers) == (status == 401)
        unread = await one.post(PATH, b"{", authorization="Bearer wrong")
        assert unread.status == 401
        mine = one.client.with_options(api_key=good)
        assert [model.id async for model in mine.models.list()] == ["fake"]
        theirs = one.client.with_options(api_key=other)
        assert [model.id async for model in theirs.models.list()] == []


def key_of(metadata: Metadata) -> str:
    return metadata[0][1].removeprefix("Bearer ")
