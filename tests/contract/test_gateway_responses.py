"""Responses over HTTP, as OpenAI's own unmodified client asks for them."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from support.gateway import Site, error_of, site
from support.routing import until
from support.script import Script
from support.tokens import Tokens

PATH = "/v1/responses"
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncGenerator[Site]:
    async with site() as one:
        yield one


async def answered(one: Site, **options: Any) -> Any:
    client: Any = one.client
    return await client.responses.create(**{"model": "fake", "input": "hello", **options})


async def test_a_whole_answer(served: Site) -> None:
    answer = await answered(served, max_output_tokens=3, instructions="be brief")
    assert answer.output_text == "0 1 2 "
    assert answer.id == f"resp_{answer._request_id}"
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.object, answer.model, answer.instructions) == ("response", "fake", "be brief")
    prompt = len("system: be brief\nuser: hello\n")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (prompt, 3)


async def test_a_stream_says_the_same(served: Site) -> None:
    options: Any = {
        "tools": [TOOL],
        "metadata": {"fake.reasons": "2", "fake.calls": "2"},
        "max_output_tokens": 6,
        "include": ["message.output_text.logprobs"],
    }
    whole = await answered(served, **options)
    assert [item.type for item in whole.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert whole.output[0].content[0].text == "0 1 "
    assert [one.token for one in whole.output[1].content[0].logprobs] == ["2 ", "3 "]
    events: list[Any] = [event async for event in await answered(served, stream=True, **options)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    last = events[-1].response
    assert (events[-1].type, last.usage) == ("response.completed", whole.usage)
    same = {"id", "status", "created_at"}
    for one, other in zip(whole.output, last.output, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        assert _without(one.to_dict(), same) == _without(other.to_dict(), same)
    assert len({event.type for event in events}) == 13


def _without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


async def test_the_client_s_own_gathering_of_a_stream_comes_to_the_same(served: Site) -> None:
    client: Any = served.client
    options: Any = {"tools": [TOOL], "metadata": {"fake.reasons": "1", "fake.calls": "1"}}
    async with client.responses.stream(model="fake", input="hello", **options) as stream:
        texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text != ""
    assert final.output[-1].name == "f"


async def test_a_conversation_goes_on_by_its_last_answer(served: Site) -> None:
    first = await answered(served, metadata={"fake.calls": "1"}, max_output_tokens=2, tools=[TOOL])
    call = first.output[-1]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await answered(
        served, previous_response_id=first.id, input=[output], metadata={"fake.echo": "1"}
    )
    assert second.previous_response_id == first.id
    assert second.output_text == "user: hello\nassistant: 0 \ntool: 42\n"[: len(second.output_text)]
    items: Any = served.client.responses.input_items
    listed = [item async for item in items.list(second.id, order="asc", limit=2)]
    assert [item.type for item in listed] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert len({item.id for item in listed}) == 4
    backwards = [item.id async for item in items.list(second.id)]
    assert backwards == [item.id for item in reversed(listed)]


async def test_answers_are_given_back_as_the_client_has_them(served: Site) -> None:
    tools: Any = {"tools": [TOOL], "max_output_tokens": 4}
    labels = {"fake.calls": "1", "fake.reasons": "1"}
    first = await answered(served, metadata=labels, store=False, **tools)
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "42"}
    turns: Any = [{"role": "user", "content": "hello"}, *first.output, output]
    second = await answered(served, input=turns, **tools)
    assert second.output_text == "0 1 2 3 "


async def test_a_kept_answer_is_told_again_and_deleted(served: Site) -> None:
    client: Any = served.client
    answer = await answered(served)
    again = await client.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    after = await answered(served, previous_response_id=answer.id)
    await client.responses.delete(answer.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match=answer.id) as caught:
            await gone(answer.id)
        assert caught.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError, match=answer.id) as caught:
        await answered(served, previous_response_id=answer.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"
    # Its conversation is also that of what went on from it.
    assert (await answered(served, previous_response_id=after.id)).status == "incomplete"


async def test_what_is_asked_of_a_kept_answer_is_served_or_refused(served: Site) -> None:
    client: Any = served.client
    answer = await answered(served)
    for query, param in (
        ({"stream": True}, "stream"),
        ({"starting_after": 3}, "starting_after"),
        ({"include": ["reasoning.encrypted_content"]}, "include[]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.retrieve(answer.id, extra_query=query)
        assert caught.value.param == param
    for query in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.input_items.list(answer.id, **query)
        assert caught.value.param in query


async def test_what_is_not_to_be_kept_and_what_failed_is_not(served: Site) -> None:
    client: Any = served.client
    answer = await answered(served, store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    stream = await answered(served, stream=True, metadata={"fake.fault": "delta"})
    events: list[Any] = [event async for event in stream]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].response.error.code == "server_error"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(events[-1].response.id)


async def test_b053_a_failure_before_the_first_token_has_its_status(served: Site) -> None:
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            await answered(served, stream=stream, metadata={"fake.fault": "started"})
        assert caught.value.code == "engine_fault"
        with pytest.raises(openai.BadRequestError) as refused:
            await answered(served, stream=stream, max_output_tokens=0)
        assert refused.value.param == "max_output_tokens"


async def test_b057_a_client_that_leaves_takes_its_request_along(served: Site) -> None:
    worker = served.bench.node.workers["fake"]
    waiting = asyncio.create_task(answered(served, metadata={"fake.stall": "started"}))
    await until(lambda: worker.running == 1)
    waiting.cancel()
    await until(lambda: worker.running == 0)


async def test_other_methods_are_refused(served: Site) -> None:
    answer = await served.post(f"{PATH}/resp_1", {})
    assert (answer.status, error_of(answer)["code"]) == (405, "method_not_allowed")
    answer = await served.post(f"{PATH}/resp_1/cancel", {})
    assert (answer.status, error_of(answer)["code"]) == (404, "unknown_path")


async def test_an_answer_is_its_key_s_own(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.add("ann")
    tokens.add("bob")
    async with site(auth=tokens.settings) as one:
        base = f"http://{one.address}/v1"
        ann: Any
        bob: Any
        async with (
            AsyncOpenAI(base_url=base, api_key=tokens.of["ann"], max_retries=0) as ann,
            AsyncOpenAI(base_url=base, api_key=tokens.of["bob"], max_retries=0) as bob,
        ):
            answer = await ann.responses.create(model="fake", input="hello")
            assert (await ann.responses.retrieve(answer.id)).id == answer.id
            for asked in (
                bob.responses.retrieve(answer.id),
                bob.responses.delete(answer.id),
                bob.responses.input_items.list(answer.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            with pytest.raises(openai.BadRequestError, match="is not kept"):
                await bob.responses.create(model="fake", input="x", previous_response_id=answer.id)
            assert (await ann.responses.retrieve(answer.id)).id == answer.id
            with pytest.raises(openai.AuthenticationError):
                await one.client.responses.retrieve(answer.id)


async def test_an_answer_is_kept_for_its_time() -> None:
    async with site(Script(tokens=2), responses_s=0.05) as one:
        client: Any = one.client
        answer = await answered(one)
        await asyncio.sleep(0.06)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)
        with pytest.raises(openai.BadRequestError, match=answer.id):
            await answered(one, previous_response_id=answer.id)
