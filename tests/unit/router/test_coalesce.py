"""Joined Deltas say exactly what the single ones said."""

import pytest

from bramley.protos.v1.generation_pb2 import Delta, Finished
from bramley.protos.v1.types_pb2 import Logprobs, ToolCallDelta
from bramley.router.coalesce import can_join, join
from bramley.router.outbox import Outbox


def test_lists_and_texts_grow_and_counts_take_the_later_value() -> None:
    first = Delta(token_ids=[1], text="a", reasoning_text="r", completion_tokens=1)
    second = Delta(
        token_ids=[2, 3],
        text="b",
        completion_tokens=3,
        reasoning_tokens=1,
        tool_calls=[ToolCallDelta(id="x")],
    )
    join(first, second)
    assert first == Delta(
        token_ids=[1, 2, 3],
        text="ab",
        reasoning_text="r",
        completion_tokens=3,
        reasoning_tokens=1,
        tool_calls=[ToolCallDelta(id="x")],
    )


def test_packed_logprobs_stay_parallel() -> None:
    def delta(token: int) -> Delta:
        return Delta(
            logprobs=Logprobs(
                token_ids=[token],
                logprobs=[-token],
                top=2,
                top_token_ids=[token, 9],
                top_logprobs=[-token, -9],
            )
        )

    first = delta(1)
    assert can_join(first, delta(2), 0)
    join(first, delta(2))
    assert list(first.logprobs.token_ids) == [1, 2]
    assert list(first.logprobs.top_token_ids) == [1, 9, 2, 9]
    assert first.logprobs.top == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Delta(index=0), Delta(index=1)),
        (Delta(text="a"), Delta(reasoning_text="b")),
        (Delta(tool_calls=[ToolCallDelta(id="x")]), Delta(text="b")),
        (Delta(tool_calls=[ToolCallDelta(id="x")]), Delta(reasoning_text="b")),
        (Delta(token_ids=[1], logprobs=Logprobs(token_ids=[1])), Delta(token_ids=[2])),
        (Delta(token_ids=[1, 2]), Delta(token_ids=[3, 4])),
        (Delta(text="a", completion_tokens=1), Delta(text="b", completion_tokens=2)),
    ],
)
def test_what_would_lose_order_or_pass_the_limit_stays_apart(first: Delta, second: Delta) -> None:
    assert not can_join(first, second, 3)


async def test_what_nobody_fetched_is_joined_and_what_was_is_not() -> None:
    outbox = Outbox(0, bytes_max=1 << 20)
    outbox.put(Delta(text="a"))
    assert await outbox.get() == Delta(text="a")
    for text in "bcd":
        outbox.put(Delta(text=text))
    outbox.close()
    assert await outbox.get() == Delta(text="bcd")
    assert await outbox.get() is None


async def test_a_slow_reader_of_several_answers_gets_one_delta_of_each() -> None:
    outbox = Outbox(0, bytes_max=1 << 20)
    for text in "abc":
        for index in range(3):
            outbox.put(Delta(index=index, text=f"{text}{index}"))
    outbox.put(Finished(index=1))
    outbox.put(Delta(index=0, text="d0"))
    outbox.close()
    assert await outbox.get() == Delta(index=0, text="a0b0c0d0")
    assert await outbox.get() == Delta(index=1, text="a1b1c1")
    assert await outbox.get() == Delta(index=2, text="a2b2c2")
    assert await outbox.get() == Finished(index=1)
    assert await outbox.get() is None


async def test_what_is_joined_to_is_still_to_be_fetched() -> None:
    outbox = Outbox(2, bytes_max=1 << 20)
    for token in range(3):
        outbox.put(Delta(token_ids=[token]))
    assert await outbox.get() == Delta(token_ids=[0, 1])
    outbox.put(Delta(token_ids=[3]))
    assert await outbox.get() == Delta(token_ids=[2, 3])
    outbox.put(Delta(token_ids=[4]))
    assert await outbox.get() == Delta(token_ids=[4])


def test_the_prompt_s_logprobs_are_kept_once() -> None:
    first = Delta(token_ids=[1], prompt_logprobs=Logprobs(token_ids=[8], logprobs=[-1]))
    second = Delta(token_ids=[2])
    assert can_join(first, second, 0)
    join(first, second)
    assert list(first.prompt_logprobs.token_ids) == [8]
