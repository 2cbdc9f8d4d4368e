"""What both clients promise, against a scripted router on a real socket."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing

import grpc
import pytest

from bramley.client import AsyncClient, Client
from bramley.client.events import Accepted, Completion, Delta, Event, Finished, Started
from bramley.client.requests import Message
from bramley.common.errors import ContextTooLong, InvalidRequest, Overloaded, WorkerLost
from bramley.common.status import RemoteError
from bramley.protos.v1 import types_pb2
from support.fake_router import MODEL, FakeRouter, Hold, answer, answers, serving


@pytest.fixture
def served() -> Generator[tuple[FakeRouter, str]]:
    with serving() as served:
        yield served


@pytest.fixture
def router(served: tuple[FakeRouter, str]) -> FakeRouter:
    return served[0]


@pytest.fixture
def client(served: tuple[FakeRouter, str]) -> Generator[Client]:
    with Client(served[1]) as client:
        yield client


@pytest.fixture
async def async_client(served: tuple[FakeRouter, str]) -> AsyncGenerator[AsyncClient]:
    async with AsyncClient(served[1]) as client:
        yield client


def check_hello(events: list[Event]) -> None:
    assert [type(event) for event in events] == [Accepted, Started, Delta, Delta, Finished]
    assert [event.text for event in events if isinstance(event, Delta)] == ["Hel", "lo"]
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.matched) == ("stop", 2)


def test_events_come_in_order(client: Client) -> None:
    check_hello(list(client.generate(MODEL, "hi")))


async def test_events_come_in_order_to_asyncio(async_client: AsyncClient) -> None:
    check_hello([event async for event in async_client.generate(MODEL, "hi")])


def test_events_come_as_they_are_sent(router: FakeRouter, client: Client) -> None:
    router.script = [*answer("first")[:3], Hold()]
    with closing(client.generate(MODEL, "hi")) as events:
        taken = [next(events) for _ in range(3)]
    assert isinstance(taken[-1], Delta)


def test_completion_holds_the_whole_answer(client: Client) -> None:
    completion = client.complete(MODEL, "hi")
    assert completion.text == "Hello"
    assert completion.token_ids == [100, 101]
    assert completion.finish_reason == "stop"
    assert completion.request_id == "r-1"
    assert completion.usage.cached_tokens == {"parked": 1, "ram": 2, "ssd": 0}
    assert (completion.timings.queue_s, completion.timings.total_s) == (0.25, 1.5)


async def test_completion_is_the_same_for_asyncio(
    client: Client, async_client: AsyncClient
) -> None:
    assert await async_client.complete(MODEL, "hi") == client.complete(MODEL, "hi")


def test_closing_the_stream_cancels_the_call(router: FakeRouter, client: Client) -> None:
    router.script = [*answer("first")[:3], Hold()]
    with closing(client.generate(MODEL, "hi")) as events:
        next(events)
    assert router.cancelled.wait(5)


def test_dropping_the_stream_cancels_the_call(router: FakeRouter, client: Client) -> None:
    router.script = [*answer("first")[:3], Hold()]
    for _ in client.generate(MODEL, "hi"):
        break
    assert router.cancelled.wait(5)


async def test_closing_the_stream_cancels_the_asyncio_call(
    router: FakeRouter, async_client: AsyncClient
) -> None:
    router.script = [*answer("first")[:3], Hold()]
    async with aclosing(async_client.generate(MODEL, "hi")) as events:
        await anext(events)
    assert await asyncio.to_thread(router.cancelled.wait, 5)


async def test_dropping_the_stream_cancels_the_asyncio_call(
    router: FakeRouter, async_client: AsyncClient
) -> None:
    router.script = [*answer("first")[:3], Hold()]
    async for _ in async_client.generate(MODEL, "hi"):
        break
    assert await asyncio.to_thread(router.cancelled.wait, 5)


async def test_cancelling_the_task_cancels_the_asyncio_call(
    router: FakeRouter, async_client: AsyncClient
) -> None:
    router.script = [Hold()]
    task = asyncio.create_task(async_client.complete(MODEL, "hi"))
    await asyncio.to_thread(router.asked.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(router.cancelled.wait, 5)


def test_error_keeps_its_reason_facts_and_retry_time(router: FakeRouter, client: Client) -> None:
    router.script = [Overloaded("full", facts={"depth": 3}, retry_after_s=1.5)]
    with pytest.raises(RemoteError) as caught:
        client.complete(MODEL, "hi")
    error = caught.value
    assert error.status_code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.reason, error.facts, error.retry_after_s) == ("QUEUE_FULL", {"depth": "3"}, 1.5)


async def test_error_names_the_field_to_asyncio(
    router: FakeRouter, async_client: AsyncClient
) -> None:
    router.script = [ContextTooLong("text", prompt=9, max_tokens=1, limit=8)]
    with pytest.raises(RemoteError) as caught:
        await async_client.complete(MODEL, "hi")
    assert caught.value.field == "text"
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"


def test_error_in_mid_stream_comes_after_what_was_sent(router: FakeRouter, client: Client) -> None:
    router.script = [*answer("first")[:3], WorkerLost("fake", tokens_emitted=1)]
    seen: list[Event] = []
    with pytest.raises(RemoteError) as caught:
        seen.extend(client.generate(MODEL, "hi"))
    assert caught.value.facts["tokens_emitted"] == "1"


def test_absent_router_is_unavailable() -> None:
    with Client("unix:/nonexistent/r.sock") as client, pytest.raises(RemoteError) as caught:
        client.list_models()
    assert caught.value.status_code is grpc.StatusCode.UNAVAILABLE


def test_timeout_reaches_the_router(router: FakeRouter, client: Client) -> None:
    router.script = [Hold()]
    with pytest.raises(RemoteError) as caught:
        client.complete(MODEL, "hi", timeout_s=0.3)
    assert caught.value.status_code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert router.time_remaining_s == pytest.approx(0.3, abs=0.3)


def test_options_reach_the_router(router: FakeRouter, client: Client) -> None:
    client.complete(
        MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=7,
        temperature=0.0,
        seed=2**63,
        stop="END",
        ignore_eos=True,
        request_id="mine",
    )
    (request,) = router.requests
    assert request.chat.messages[0].content == "hi"
    assert (request.stop.max_tokens, request.stop.ignore_eos) == (7, True)
    assert list(request.stop.strings) == ["END"]
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")
    assert (request.sampling.seed, request.request_id) == (2**63, "mine")


def check_choices(completion: Completion) -> None:
    assert [choice.text for choice in completion.choices] == ["abc", "d", "efgh"]
    assert [choice.token_ids for choice in completion.choices][1] == [ord("d")]
    assert (completion.text, completion.finish_reason) == ("abc", "length")
    assert completion.usage.prompt_tokens == 5
    assert completion.usage.completion_tokens == 8
    assert [choice.usage.completion_tokens for choice in completion.choices] == [3, 1, 4]


async def test_several_answers_are_choices_and_their_prompt_counts_once(
    router: FakeRouter, client: Client, async_client: AsyncClient
) -> None:
    router.script = answers("abc", "d", "efgh")
    check_choices(client.complete(MODEL, "hi", n=3))
    check_choices(await async_client.complete(MODEL, "hi", n=3))
    assert [request.n for request in router.requests] == [3, 3]
    events = list(client.generate(MODEL, "hi", n=3))
    assert [event.index for event in events if isinstance(event, Finished)] == [0, 1, 2]


def test_one_answer_is_its_own_only_choice(client: Client) -> None:
    completion = client.complete(MODEL, "hi")
    (choice,) = completion.choices
    assert (choice.text, choice.usage) == (completion.text, completion.usage)
    assert completion.matched == 2


def test_logprobs_are_values_beside_their_tokens(router: FakeRouter, client: Client) -> None:
    router.script = answers("ab", "c")
    completion = client.complete(MODEL, "hi", n=2, logprobs=2, prompt_logprobs=True)
    assert [one.token_id for one in completion.logprobs] == completion.token_ids
    assert [one.logprob for one in completion.logprobs] == [0.0, -1.0]
    assert completion.logprobs[1].top == {1: -0.5, 2: -1.5}
    (of_prompt,) = completion.prompt_logprobs
    assert (of_prompt.token_id, of_prompt.logprob, of_prompt.top) == (9, -3.0, {})
    (request,) = router.requests
    assert (request.logprobs.top, request.logprobs.prompt) == (2, True)


def test_every_option_reaches_its_field(router: FakeRouter, client: Client) -> None:
    client.complete(
        MODEL,
        "hi",
        min_tokens=3,
        xtc_probability=0.5,
        xtc_threshold=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        penalty_window=32,
        logit_bias={7: -1.5},
        stop_token_ids=[5],
        include_stop=True,
        bad_words=["no"],
        logprobs=0,
        priority="bulk",
        max_delay_s=0.25,
    )
    (request,) = router.requests
    assert request.sampling == types_pb2.SamplingParams(
        xtc_probability=0.5,
        xtc_threshold=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        penalty_window=32,
        logit_bias={7: -1.5},
    )
    assert request.stop == types_pb2.StopConditions(
        min_tokens=3, token_ids=[5], include_stop=True, bad_words=["no"]
    )
    assert request.logprobs == types_pb2.LogprobOptions(top=0)
    assert request.HasField("logprobs")
    assert request.priority == types_pb2.PRIORITY_CLASS_BULK
    assert request.stream.max_delay.ToMilliseconds() == 250


def test_invalid_request_is_raised_before_the_first_event(client: Client) -> None:
    with pytest.raises(InvalidRequest):
        client.generate(MODEL)


def test_models_status_and_abort_are_plain_values(client: Client) -> None:
    (model,) = client.list_models()
    assert model == client.get_model(MODEL)
    assert (model.state, model.context_tokens, model.has_chat_template) == ("ready", 2048, True)
    status = client.status()
    assert (status.version, status.epoch, status.uptime_s) == ("1.2.3", 7, 60.0)
    assert client.abort("r-1", "r-2") == {"r-1": True, "r-2": False}


async def test_asyncio_models_status_and_abort_are_the_same(
    client: Client, async_client: AsyncClient
) -> None:
    assert await async_client.list_models() == client.list_models()
    assert await async_client.get_model(MODEL) == client.get_model(MODEL)
    assert await async_client.status() == client.status()
    assert await async_client.abort("r-1") == client.abort("r-1")


async def test_tokens_and_text_are_told_by_both(client: Client, async_client: AsyncClient) -> None:
    ids = client.tokenize(MODEL, "hey")
    assert ids == await async_client.tokenize(MODEL, messages=[{"role": "user", "content": "hey"}])
    assert client.detokenize(MODEL, ids) == await async_client.detokenize(MODEL, ids) == "hey"


async def test_both_tell_what_a_flush_did(client: Client, async_client: AsyncClient) -> None:
    told = client.flush_cache()
    assert told == await async_client.flush_cache(MODEL)
    assert (told.ok, told.bytes, told.longest_prefix_tokens) == (True, 3 << 20, 512)


async def test_both_explain_a_prompt(
    router: FakeRouter, client: Client, async_client: AsyncClient
) -> None:
    told = client.explain_cache(MODEL, "hi", adapter="a", salt="s")
    turns: list[Message] = [{"role": "user", "content": "hi"}]
    assert told == await async_client.explain_cache(MODEL, messages=turns)
    assert told.cached_tokens == {"parked": 0, "ram": 256, "ssd": 0}
    assert (told.prompt_tokens, told.first_differing_block) == (300, 1)
    assert told.mismatched_fields == ["salt"]
    first, second = router.explained
    assert (first.text, first.adapter, first.salt) == ("hi", "a", "s")
    assert second.chat.messages[0].content == "hi"


async def test_both_close_a_session(
    router: FakeRouter, client: Client, async_client: AsyncClient
) -> None:
    assert client.close_session(MODEL, "k", salt="s")
    assert not await async_client.close_session(MODEL, "k")
    assert [(one.model, one.session_key, one.salt) for one in router.closed] == [
        (MODEL, "k", "s"),
        (MODEL, "k", ""),
    ]


def test_a_session_and_a_salt_are_sent_along(router: FakeRouter, client: Client) -> None:
    client.complete(MODEL, "hi", session_key="k", salt="s")
    (request,) = router.requests
    assert (request.session_key, request.cache.salt) == ("k", "s")


def test_explaining_nothing_is_refused_at_once(client: Client) -> None:
    with pytest.raises(InvalidRequest):
        client.explain_cache(MODEL)
