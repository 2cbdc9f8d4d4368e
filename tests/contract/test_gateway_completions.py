"""Completions and models over HTTP, as OpenAI's own unmodified client asks for them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
import pytest_asyncio

from bramley.protos.v1 import router_pb2
from support.gateway import Site, error_of, events, site
from support.routing import until

PATH = "/v1/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncGenerator[Site]:
    async with site() as one:
        yield one


async def completed(one: Site, **options: Any) -> Any:
    client: Any = one.client
    return await client.completions.create(**{"model": "fake", "prompt": "hi", **options})


async def test_a_whole_completion_and_a_stream_say_the_same(served: Site) -> None:
    answer = await completed(served, max_tokens=3, n=2)
    assert (answer.object, answer.model) == ("text_completion", "fake")
    assert answer.id == f"cmpl-{answer._request_id}"
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (0, "0 1 2 ", "length"),
        (1, "0 1 2 ", "length"),
    ]
    stream = await completed(
        served, max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    for index in (0, 1):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in own) == "0 1 2 "
        assert own[-1].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage) == ([], answer.usage)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 6)


async def test_a_completion_has_sixteen_tokens_where_nothing_is_said(served: Site) -> None:
    assert (await completed(served)).usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_a_prompt_is_text_or_ids(served: Site, prompt: Any) -> None:
    answer = await completed(served, prompt=prompt, extra_body={"metadata": {"fake.echo": "true"}})
    assert answer.choices[0].text == "hi"


async def test_several_prompts_are_answered_side_by_side(served: Site) -> None:
    options: Any = {
        "prompt": ["ab", [99, 100]],
        "n": 2,
        "extra_body": {"metadata": {"fake.echo": "true"}},
    }
    answer = await completed(served, **options)
    assert [(one.index, one.text) for one in answer.choices] == [
        (0, "ab"),
        (1, "ab"),
        (2, "cd"),
        (3, "cd"),
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 8)
    counted: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = [chunk async for chunk in await completed(served, **options, **counted)]
    assert (last.choices, last.usage) == ([], answer.usage)
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in answer.choices:
        own = [c.choices[0].text for c in chunks if c.choices[0].index == choice.index]
        assert "".join(own) == choice.text


async def test_several_prompts_are_answered_all_or_none(served: Site) -> None:
    worker = served.bench.node.workers["fake"]
    body: Any = {"model": "fake", "prompt": ["x", "", "x"], "metadata": {"fake.stall": "started"}}
    for stream in (False, True):
        answer = await served.post(PATH, {**body, "stream": stream})
        assert (answer.status, error_of(answer)["param"]) == (400, "prompt")
    await until(lambda: worker.running == 0)
    await until(lambda: len(served.bench.router.server.registry) == 0)


async def test_each_of_several_prompts_has_a_name_and_an_abort_of_one_ends_all(
    served: Site,
) -> None:
    body = {"model": "fake", "prompt": ["x", "y"], "metadata": {"fake.stall": "started"}}
    waiting = asyncio.create_task(served.post(PATH, body, x_request_id="mine"))
    worker = served.bench.node.workers["fake"]
    await until(lambda: worker.running == 2)
    await served.bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine.1"]))
    answer = await waiting
    assert (answer.status, error_of(answer)["code"]) == (499, "aborted")
    await until(lambda: worker.running == 0)


async def test_b057_a_client_that_leaves_takes_all_its_prompts_along(served: Site) -> None:
    worker = served.bench.node.workers["fake"]
    labels = {"metadata": {"fake.stall": "started"}}
    waiting = asyncio.create_task(completed(served, prompt=["x", "y"], extra_body=labels))
    await until(lambda: worker.running == 2)
    waiting.cancel()
    await until(lambda: worker.running == 0)
    await until(lambda: len(served.bench.router.server.registry) == 0)


async def test_log_probabilities_are_side_by_side(served: Site) -> None:
    logprobs = (await completed(served, max_tokens=3, logprobs=0)).choices[0].logprobs
    assert logprobs.tokens == ["0 ", "1 ", "2 "]
    assert logprobs.token_logprobs == [0, -1, -2]
    assert logprobs.text_offset == [0, 2, 4]
    stream = await completed(served, max_tokens=3, logprobs=0, stream=True)
    parts = [chunk.choices[0].logprobs async for chunk in stream]
    assert [place for part in parts if part for place in part.text_offset] == [0, 2, 4]


async def test_what_is_refused_is_named(served: Site) -> None:
    for name, value in (("logprobs", 21), ("echo", True), ("suffix", "x"), ("prompt", ["a", 1])):
        answer = await served.post(PATH, {"model": "fake", "prompt": "x", name: value})
        assert (answer.status, error_of(answer)["param"]) == (400, name)


async def test_a_stream_that_fails_ends_without_done(served: Site) -> None:
    body = {"model": "fake", "prompt": "x", "stream": True, "metadata": {"fake.fault": "delta"}}
    *chunks, last = events(await served.post(PATH, body))
    assert chunks
    assert last["error"]["code"] == "engine_fault"


async def test_models_are_listed_and_told_of(served: Site) -> None:
    (model,) = [model async for model in served.client.models.list()]
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "bramley")
    told: Any = await served.client.models.retrieve("fake")
    assert told.id == "fake"
    assert told.max_model_len == 4096
    assert (told.reasoning_format, told.tool_format) == (None, "json_tools")
    with pytest.raises(openai.NotFoundError) as caught:
        await served.client.models.retrieve("no/body")
    assert caught.value.code == "model_not_found"
