"""One request's stream: several answers in one, and tokens that wait for each other."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from bramley.common.errors import EngineFault
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.worker.answer import Reading
from bramley.worker.engine.outputs import (
    Failed,
    Output,
    Preempted,
    Prefilled,
    PromptLogprobs,
    Seated,
    Token,
)
from bramley.worker.engine.stopping import Finish
from bramley.worker.generate import Stream
from bramley.worker.reading.events import PlainReader
from bramley.worker.request import Phase, Request, StopRule, TokenLogprob
from bramley.worker.sampling.params import SamplingParams

END = Finish("length")


class Bytes:
    """A detokenizer of one byte a token."""

    def push(self, ids: Iterable[int]) -> str:
        return "".join(map(chr, ids))

    def finish(self) -> str:
        return ""


def reading() -> Reading:
    return Reading(Bytes(), PlainReader())


class Bench:
    """A stream and what the engine would say to it."""

    def __init__(self, n: int = 1, **fields: Any) -> None:
        request = generation_pb2.GenerateRequest(text="x", n=n, **fields)
        works = [
            Request(
                id=f"r#{index}",
                prompt=[7, 8],
                stop=StopRule(max_tokens=9),
                sampling=SamplingParams(),
            )
            for index in range(n)
        ]
        self.cancelled: list[str] = []
        self.resumed: list[str] = []
        self.meanwhile: Sequence[Output] = ()
        self.stream = Stream(request, works, reading, self.cancelled.append, self.resume)

    async def resume(self, work: Request) -> None:
        self.resumed.append(work.id)
        for output in self.meanwhile:
            self.stream.put(output)

    async def at_once(self, *outputs: Output) -> list[str]:
        """What is sent of these outputs without being told to, in short."""
        for output in outputs:
            self.stream.put(output)
        taking = asyncio.ensure_future(self.later())
        await asyncio.sleep(0)
        if taking.done():
            return await taking
        taking.cancel()
        return []

    async def told(self, *outputs: Output) -> list[str]:
        """What is sent of these outputs when it is told to."""
        for output in outputs:
            self.stream.put(output)
        self.stream.tell()
        return await self.at_once()

    async def later(self) -> list[str]:
        """What is sent next, some time."""
        return [short(response) for response in await self.stream.take()]


def short(response: worker_pb2.WorkerServiceGenerateResponse) -> str:
    match response.WhichOneof("event"):
        case "delta":
            return f"{response.delta.index}:{response.delta.text}"
        case "finished":
            return f"{response.finished.index}!"
        case event:
            return str(event)


def seated(index: int = 0, **facts: Any) -> Seated:
    return Seated(f"r#{index}", 0.0, **facts)


def says(text: str, index: int = 0, finish: Finish | None = None) -> Sequence[Token]:
    tokens = [Token(f"r#{index}", ord(character), 1.0) for character in text]
    return [*tokens[:-1], Token(f"r#{index}", ord(text[-1]), 1.0, finish)]


async def test_what_gathered_goes_together_in_order() -> None:
    bench = Bench()
    outputs = [seated(), Prefilled("r#0", 1), *says("ab")]
    assert await bench.told(*outputs) == ["started", "progress", "0:ab"]
    assert await bench.told(*says("c", finish=END)) == ["0:c", "0!"]
    assert bench.stream.is_over
    assert not bench.cancelled


async def test_each_index_has_its_text_and_its_end_and_the_last_ends_the_stream() -> None:
    bench = Bench(n=3)
    assert await bench.told(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.told(seated(1), seated(2)) == []
    mixed = [*says("x", 1), *says("b"), *says("p", 2), *says("y", 1, END), *says("c")]
    assert await bench.told(*mixed) == ["0:bc", "1:xy", "1!", "2:p"]
    assert not bench.stream.is_over
    assert await bench.told(*says("q", 2, END)) == ["2:q", "2!"]
    assert await bench.told(*says("d", 0, END)) == ["0:d", "0!"]
    assert bench.stream.is_over


async def test_every_index_states_the_prompt_and_what_of_it_was_not_computed() -> None:
    bench = Bench(n=2)
    bench.stream.cached.CopyFrom(types_pb2.CachedTokens(ram=1))
    for output in (seated(restored=1), seated(1, parked=1)):
        bench.stream.put(output)
    for output in (*says("ab", finish=END), *says("c", 1, END)):
        bench.stream.put(output)
    responses = await bench.stream.take()
    usages = [r.finished.usage for r in responses if r.HasField("finished")]
    assert [usage.prompt_tokens for usage in usages] == [2, 2]
    assert [usage.cached for usage in usages] == [types_pb2.CachedTokens(ram=1)] * 2
    assert [usage.completion_tokens for usage in usages] == [2, 1]
    assert responses[0].started.cached == types_pb2.CachedTokens(ram=1)


async def test_a_stored_prefix_that_was_not_restored_does_not_count() -> None:
    bench = Bench()
    bench.stream.cached.CopyFrom(types_pb2.CachedTokens(ram=1))
    bench.stream.put(seated(parked=2))
    (started,) = await bench.stream.take()
    assert started.started.cached == types_pb2.CachedTokens(parked=2)


async def test_a_row_that_is_seated_again_starts_no_second_time() -> None:
    bench = Bench()
    assert await bench.told(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.told(seated(), Prefilled("r#0", 1), *says("b")) == ["0:b"]


async def test_an_answer_that_lost_its_seat_is_resumed_unless_it_is_complete() -> None:
    bench = Bench(n=2, stop=types_pb2.StopConditions(strings=["b"]))
    works = [
        Request(id=f"r#{index}", prompt=[7], stop=StopRule(max_tokens=1), sampling=SamplingParams())
        for index in range(2)
    ]
    outputs = [seated(), *says("ab"), *says("x", 1), *(Preempted(one.id, one) for one in works)]
    assert await bench.told(*outputs) == ["started", "0:a", "0!", "1:x"]
    assert bench.resumed == ["r#1"]
    assert [one.phase for one in works] == [Phase.ENDED, Phase.WAITING]  # nobody waits for it
    assert await bench.told(seated(1), *says("y", 1, END)) == ["1:y", "1!"]


async def test_an_answer_that_met_a_stop_string_is_cancelled_at_once_and_alone() -> None:
    bench = Bench(n=2, stop=types_pb2.StopConditions(strings=["b"]))
    outputs = [seated(), *says("abcd"), *says("x", 1)]
    assert await bench.told(*outputs) == ["started", "0:a", "0!", "1:x"]
    assert bench.cancelled == ["r#0"]
    assert await bench.told(*says("yz", 1, END), *says("e")) == ["1:yz", "1!"]
    assert bench.cancelled == ["r#0"]


async def test_a_failure_of_one_index_fails_the_stream() -> None:
    bench = Bench(n=2)
    with pytest.raises(EngineFault):
        await bench.told(seated(), *says("a"), Failed("r#1", EngineFault("x")))


async def test_a_failure_after_an_answer_is_complete_does_not_count() -> None:
    bench = Bench(n=2, stop=types_pb2.StopConditions(strings=["b"]))
    outputs = [seated(), *says("ab"), Failed("r#0", EngineFault("x"))]
    assert await bench.told(*outputs) == ["started", "0:a", "0!"]


async def test_the_prompt_s_logprobs_wait_for_the_first_token() -> None:
    bench = Bench(n=2, logprobs=types_pb2.LogprobOptions(prompt=True))
    of_prompt = PromptLogprobs("r#0", (TokenLogprob(-1.0),))
    assert await bench.told(seated(), of_prompt) == ["started"]
    for output in (*says("a"), *says("b", 1)):
        bench.stream.put(output)
    first, second = await bench.stream.take()
    assert list(first.delta.prompt_logprobs.token_ids) == [8]
    assert not second.delta.HasField("prompt_logprobs")


async def test_what_can_wait_is_told_together_once_the_stream_is_told_to() -> None:
    bench = Bench(n=2)
    assert await bench.at_once(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.at_once(*says("b")) == []
    assert await bench.at_once(*says("x", 1)) == ["0:b", "1:x"]  # the first of its index
    assert await bench.at_once(*says("c"), *says("y", 1)) == []
    assert await bench.told(*says("d")) == ["0:cd", "1:y"]
    assert await bench.told() == []
    assert await bench.at_once(*says("e")) == []
    assert await bench.at_once(*says("f", finish=END)) == ["0:ef", "0!"]


async def test_a_stop_string_is_found_before_the_stream_is_told_to() -> None:
    bench = Bench(stop=types_pb2.StopConditions(strings=["bc"]))
    assert await bench.at_once(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.at_once(*says("x")) == []
    assert await bench.at_once(*says("b")) == []
    assert await bench.at_once(*says("cd")) == ["0:x", "0!"]
    assert bench.cancelled == ["r#0"]


async def test_a_failure_and_a_lost_seat_wait_for_nothing() -> None:
    bench = Bench()
    work = Request(id="r#0", prompt=[7], stop=StopRule(max_tokens=1), sampling=SamplingParams())
    assert await bench.at_once(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.at_once(*says("b"), Preempted("r#0", work)) == []
    assert bench.resumed == ["r#0"]
    with pytest.raises(EngineFault):
        await bench.at_once(Failed("r#0", EngineFault("x")))


async def test_what_comes_while_an_answer_is_resumed_is_told_when_the_stream_is_told_to() -> None:
    bench = Bench(n=2)
    assert await bench.at_once(seated(), *says("a"), *says("x", 1)) == ["started", "0:a", "1:x"]
    bench.meanwhile = says("b")
    work = Request(id="r#1", prompt=[7], stop=StopRule(max_tokens=1), sampling=SamplingParams())
    assert await bench.told(*says("y", 1), Preempted("r#1", work)) == ["0:b", "1:y"]
    bench.meanwhile = says("c")
    assert await bench.at_once(Preempted("r#1", work)) == []
    assert await bench.told() == ["0:c"]


def patient(span: Duration, n: int = 1, **fields: Any) -> Bench:
    return Bench(n, stream=types_pb2.StreamOptions(max_delay=span), **fields)


async def test_tokens_wait_for_each_other_but_not_the_first_nor_the_end() -> None:
    bench = patient(Duration(seconds=10), n=2)
    assert await bench.told(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.told(*says("b")) == []
    assert await bench.told(*says("c")) == []
    assert await bench.told(*says("x", 1)) == ["0:bc", "1:x"]  # the first of its index
    assert await bench.told(*says("d")) == []
    assert await bench.told(*says("y", 1, END)) == ["0:d", "1:y", "1!"]
    bench.stream.close()


async def test_tokens_that_wait_are_sent_when_their_time_is_over() -> None:
    bench = patient(Duration(nanos=20_000_000))
    assert await bench.told(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.told(*says("b")) == []
    assert await bench.told(*says("c")) == []
    async with asyncio.timeout(10):
        assert await bench.later() == ["0:bc"]  # nothing new came: the timer alone
        assert await bench.told(*says("d")) == []
        assert await bench.later() == ["0:d"]


async def test_a_stop_string_is_found_while_tokens_wait() -> None:
    bench = patient(Duration(seconds=10), stop=types_pb2.StopConditions(strings=["cd"]))
    assert await bench.told(seated(), *says("a")) == ["started", "0:a"]
    assert await bench.told(*says("bc")) == []
    assert await bench.told(*says("de")) == ["0:b", "0!"]
    assert bench.cancelled == ["r#0"]


async def test_a_closed_stream_leaves_no_timer() -> None:
    bench = patient(Duration(seconds=10))
    await bench.told(seated(), *says("a"))
    await bench.told(*says("b"))
    bench.stream.close()
    taking = asyncio.ensure_future(bench.stream.take())
    await asyncio.sleep(0)
    assert not taking.done()
    taking.cancel()
