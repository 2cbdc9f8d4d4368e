"""Public reports that need a real engine, or one that fails: what is told, and what is left."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import grpc
import pytest

from bramley.client.client import AsyncClient
from bramley.client.events import Accepted, Completion, Delta, Event, Progress
from bramley.client.requests import Options, generate_request
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.baseline import at_rest, held, metric
from support.faulty import MARKER, STAGES
from support.lab import Lab, lab
from support.routing import collect_until_error
from support.served import Served

PROMPT = "Once upon a time"
LONG = "y" * 1500
MODELS = """
[models.tiny]
path = "{models}/tiny"
max_rows = 4
prefill_chunk_tokens = 16
"""


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Lab]:
    """One model, whose worker fails as a test wants it to."""
    async with lab(tmp_path_factory.mktemp("cases"), MODELS) as made:
        yield made


@pytest.fixture(scope="module")
async def oracle(bench: Lab) -> Completion:
    return await plain(bench.served, PROMPT)


async def plain(served: Served, prompt: str, max_tokens: int = 12) -> Completion:
    """Answer greedily, without anything that is cached."""
    options = Options(skip_lookup=True, skip_store=True, ignore_eos=True, max_tokens=max_tokens)
    return await served.completed("tiny", prompt, **options)


@pytest.mark.parametrize("name", ["nope", "NOPE", "../tiny", "x" * 200])
async def test_b024_an_unknown_adapter_is_refused_by_name_and_never_the_base_model_s_text(
    bench: Lab, name: str
) -> None:
    request = generation_pb2.GenerateRequest(model="tiny", text=PROMPT, adapter=name)
    async with open_channel(bench.served.client.target) as channel:
        call = RouterServiceStub(channel).Generate(request)
        seen, raised = await collect_until_error(call)
    assert not [response for response in seen if response.HasField("delta")]
    told = RemoteError(raised)
    by_field = told.code == "INVALID_ARGUMENT" and told.field == "adapter"
    assert by_field or (told.code == "NOT_FOUND" and told.facts.get("name") == name), told


# How a client goes away: each begins an answer of 3,000 tokens, and leaves it.

Leave = Callable[[Served], Awaitable[None]]
ENDLESS: Options = {"max_tokens": 2000, "ignore_eos": True, "temperature": 0.0, "progress": True}


async def _leave_by_closing(
    served: Served, prompt: str, reached: Callable[[Event], bool], *, is_call: bool = False
) -> None:
    """Begin on a connection of its own, and at an event close it, or end the call alone."""
    async with AsyncClient(served.client.target) as client:
        events = client.generate("tiny", prompt, **ENDLESS)
        async for event in events:
            if reached(event):
                break
        if is_call:
            await events.aclose()
        else:
            await client.close()
            with suppress(RemoteError, asyncio.CancelledError):
                await events.aclose()


async def before_the_first_byte(served: Served) -> None:
    await _leave_by_closing(served, LONG, lambda event: isinstance(event, Accepted))


async def during_prefill(served: Served) -> None:
    await _leave_by_closing(served, LONG[1:], lambda event: isinstance(event, Progress))


async def after_three_deltas(served: Served) -> None:
    def has_three(event: Event) -> bool:
        return isinstance(event, Delta) and event.completion_tokens >= 3

    await _leave_by_closing(served, PROMPT, has_three)


async def of_a_call_that_streams_nothing(served: Served) -> None:
    waiting = asyncio.create_task(served.client.complete("tiny", PROMPT, **ENDLESS))
    while (await served.client.get_model("tiny")).requests_running == 0:  # noqa: ASYNC110 asked
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])


async def by_a_cancel(served: Served) -> None:
    async with open_channel(served.client.target) as channel:
        call = RouterServiceStub(channel).Generate(generate_request("tiny", PROMPT, ENDLESS))
        async for response in call:
            if response.WhichOneof("event") == "delta":
                break
        call.cancel()


@pytest.mark.parametrize(
    "leave",
    [
        before_the_first_byte,
        during_prefill,
        after_three_deltas,
        of_a_call_that_streams_nothing,
        by_a_cancel,
    ],
)
async def test_b057_whoever_goes_away_frees_its_row_and_is_counted(
    bench: Lab, oracle: Completion, leave: Leave
) -> None:
    served = bench.served
    took_s: list[float] = []
    for _ in range(10):
        before = await _cancellations(served)
        with bench.fault("slow"):
            await leave(served)
            began_s = time.monotonic()
            await at_rest(served)
            load = await served.cluster.within(bench.idle("tiny"))  # by its own account
            took_s.append(time.monotonic() - began_s)
        assert await _cancellations(served) == before + 1
        # And not a token more for whoever left.
        assert (await plain(served, PROMPT)).token_ids == oracle.token_ids
        after = await bench.idle("tiny")
        assert after.completion_tokens == load.completion_tokens + len(oracle.token_ids)
    took_s.sort()
    assert took_s[-2] < 1.0, took_s  # of ten, one may be late where the machine is busy


async def _cancellations(served: Served) -> float:
    return await metric(served, "bramley_router_cancellations_total", model="tiny")


# Faults that leave the state of a whole forward unknown end all of its rows.
SHARED = {"prefill 1", "prefill 2", "first token"}


@pytest.mark.parametrize("stage", STAGES)
async def test_b059_an_error_at_any_stage_of_a_real_worker_ends_its_request_and_no_more(
    bench: Lab, oracle: Completion, stage: str
) -> None:
    served = bench.served
    prompt = f"{MARKER} {stage} " * 4  # a chunk is 16 tokens
    asked: Options = {"max_tokens": 8, "ignore_eos": True}
    if stage == "copy a row":
        await served.completed("tiny", prompt, **asked)
    beside = [f"beside {stage} {number}" for number in range(2)]
    with bench.fault("slow"):
        streams = [_Stream(served, text) for text in beside]
        for stream in streams:
            await served.cluster.within(stream.begun.wait())
        began_s = time.monotonic()
        with bench.fault("fail", stage), pytest.raises(RemoteError) as raised:
            await served.completed("tiny", prompt, **asked)
        took_s = time.monotonic() - began_s
    assert (raised.value.status_code, raised.value.reason) == (
        grpc.StatusCode.INTERNAL,
        "ENGINE_FAULT",
    )
    assert took_s < 1.0
    for stream, text in zip(streams, beside, strict=True):
        if error := await stream.ended():
            assert stage in SHARED, error
            assert error.reason == "ENGINE_FAULT"
        else:
            assert stream.token_ids == (await plain(served, text, _Stream.TOKENS)).token_ids
    await at_rest(served)
    assert not await held(served)
    assert (await plain(served, PROMPT)).token_ids == oracle.token_ids


class _Stream:
    """A healthy answer beside one that fails."""

    TOKENS = 60

    def __init__(self, served: Served, prompt: str) -> None:
        self.token_ids: list[int] = []
        self.begun = asyncio.Event()
        self._task = asyncio.create_task(self._run(served, prompt))

    async def _run(self, served: Served, prompt: str) -> None:
        call = served.client.generate(
            "tiny", prompt, max_tokens=self.TOKENS, ignore_eos=True, temperature=0.0
        )
        async with aclosing(call) as events:
            async for event in events:
                if isinstance(event, Delta):
                    self.token_ids += event.token_ids
                    self.begun.set()

    async def ended(self) -> RemoteError | None:
        """Wait for its end: the error, if it was one."""
        try:
            await asyncio.wait_for(self._task, 10.0)
        except RemoteError as error:
            return error
        return None
