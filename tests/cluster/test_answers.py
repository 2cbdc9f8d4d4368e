"""What a request may ask of its answers, through the whole cluster and a real engine."""

import time
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Unpack

import grpc
import pytest

from bramley.client import replies
from bramley.client.events import Choice, Completion, Delta, Finished, Gathering
from bramley.client.requests import Options
from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import ENDLESS, ENDS, SAYS, Served

PROMPT = "several answers"
SEEDED: Options = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "ignore_eos": True}


async def asked(
    served: Served, options: Options | None = None, **more: Unpack[Options]
) -> Completion:
    """Ask the random model."""
    both: Options = {**(options or {}), **more}
    return await served.client.complete("tiny", PROMPT, **both)


def parts(choice: Choice) -> tuple[str, list[int], str, str | int | None]:
    return choice.text, choice.token_ids, choice.finish_reason, choice.matched


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 17}, "n"),
        ({"n": 2**31 - 1}, "n"),
        ({"max_tokens": 10**8}, "text"),
        ({"min_tokens": 9, "max_tokens": 8}, "stop.min_tokens"),
        ({"logprobs": 10**6}, "logprobs.top"),
        ({"stop": [str(number) for number in range(10**5)]}, "stop.strings"),
        ({"bad_words": ["x" * 65]}, "stop.bad_words"),
        ({"logit_bias": {10**6: 1.0}}, "sampling.logit_bias"),
        ({"logit_bias": dict.fromkeys(range(10**5), 1.0)}, "sampling.logit_bias"),
        ({"presence_penalty": float("nan")}, "sampling.presence_penalty"),
    ],
)
async def test_b056_what_is_beyond_a_limit_is_refused_at_once(
    served: Served, options: Any, field: str
) -> None:
    began_s = time.monotonic()
    with pytest.raises(RemoteError) as raised:
        await asked(served, **options)
    assert time.monotonic() - began_s < 1.0
    assert (raised.value.status_code, raised.value.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        field,
    )


@pytest.mark.parametrize("n", [4, 16])  # the model has four rows
async def test_b056_n_answers_come_by_index_and_their_prompt_counts_once(
    served: Served, n: int
) -> None:
    whole = await asked(served, SEEDED, n=n)
    assert len(whole.choices) == n
    assert len({tuple(choice.token_ids) for choice in whole.choices}) > n // 2
    assert whole.usage.prompt_tokens == len(PROMPT)
    assert whole.usage.completion_tokens == 12 * n
    assert parts(whole) == parts(await asked(served, SEEDED))
    again = await asked(served, SEEDED, n=n)
    assert list(map(parts, again.choices)) == list(map(parts, whole.choices))


async def test_b056_leaving_ends_all_answers(served: Served) -> None:
    stream = served.client.generate(
        "tiny", PROMPT, n=4, temperature=1.0, ignore_eos=True, max_tokens=200
    )
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    await served.idle("tiny")
    assert parts(await asked(served, SEEDED)) == parts(await asked(served, SEEDED))


@pytest.mark.parametrize(("byte", "end"), ENDS.items())
async def test_b006_every_end_token_ends_each_answer(served: Served, byte: str, end: int) -> None:
    whole = await served.completed("script", byte, n=3, logprobs=2)
    for choice in whole.choices:
        assert (choice.text, choice.finish_reason, choice.matched) == ("hi", "stop", end)
        assert [one.token_id for one in choice.logprobs] == choice.token_ids


@pytest.mark.parametrize("max_delay_s", [0.0, 10.0])
async def test_b004_stop_strings_cut_text_ids_and_logprobs_of_each_answer(
    served: Served, max_delay_s: float
) -> None:
    whole = await served.completed(
        "script", "\x05", stop="own fox", n=3, logprobs=0, max_delay_s=max_delay_s
    )
    for choice in whole.choices:
        assert (choice.text, choice.matched) == ("The quick br", "own fox")
        assert [one.token_id for one in choice.logprobs] == choice.token_ids
        assert choice.usage.completion_tokens == len("The quick brown fox")
    await served.idle("script")


async def test_logprobs_are_the_model_s_own_whatever_is_filtered(served: Served) -> None:
    plain = await asked(served, temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    for one in plain.logprobs:
        assert next(iter(one.top)) == one.token_id  # greedy
        assert one.top[one.token_id] == pytest.approx(one.logprob, abs=1e-5)
        assert all(first >= second for first, second in pairwise(one.top.values()))
    filtered = await asked(
        served, temperature=5.0, top_k=1, max_tokens=8, ignore_eos=True, logprobs=3
    )
    assert filtered.token_ids == plain.token_ids
    for one, other in zip(plain.logprobs, filtered.logprobs, strict=True):
        assert one.top == pytest.approx(other.top, abs=1e-4)


async def test_the_prompt_s_logprobs_are_those_of_an_answer_of_the_same_tokens(
    served: Served,
) -> None:
    said = await asked(served, SEEDED, logprobs=2)
    ids = [*await served.client.tokenize("tiny", PROMPT), *said.token_ids]
    for _ in range(2):  # what is cached of it meanwhile is not used
        scored = await served.client.complete(
            "tiny", token_ids=ids, max_tokens=1, n=2, logprobs=2, prompt_logprobs=True
        )
        assert [one.token_id for one in scored.prompt_logprobs] == ids[1:]
        assert not any(scored.usage.cached_tokens.values())
        for one, other in zip(scored.prompt_logprobs[-12:], said.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.top == pytest.approx(other.top, abs=1e-4)


async def test_the_first_min_tokens_end_nothing(served: Served) -> None:
    one = await served.completed("script", "A", min_tokens=5, max_tokens=9)
    assert len(one.token_ids) > 5 or one.finish_reason == "length"
    assert not set(one.token_ids[:5]) & set(ENDS.values())
    late = await served.completed("script", ENDLESS, min_tokens=7, stop="abc")
    assert (late.text, late.matched) == ("abc abc ", "abc")
    assert len(late.token_ids) == 11


async def test_bad_words_do_not_come(served: Served) -> None:
    letters: Options = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    letters["logit_bias"] = dict.fromkeys(range(ord("a"), ord("z") + 1), 100.0)
    free = await asked(served, letters)
    one, two = free.text[5], free.text[9:11]
    kept = await asked(served, letters, bad_words=[one, two])
    assert free.text.isalpha()
    assert kept.text.isalpha()
    assert one not in kept.text
    assert two not in kept.text


async def test_a_bias_decides(served: Served) -> None:
    one = await asked(served, temperature=0.0, max_tokens=5, logit_bias={65: 100.0})
    assert one.text == "AAAAA"
    none = await asked(served, SEEDED, logit_bias=dict.fromkeys(range(128), -100.0))
    assert not any(token < 128 for token in none.token_ids)


async def test_penalties_change_what_comes(served: Served) -> None:
    greedy: Options = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    bias = {65: 100.0, 66: 100.0}  # nothing else would come
    plain = await asked(served, greedy, logit_bias={65: 100.0})
    assert plain.text == "A" * 24
    for options in (
        Options(frequency_penalty=2.0, logit_bias=bias),
        Options(presence_penalty=2.0, frequency_penalty=1.0, penalty_window=24, logit_bias=bias),
    ):
        assert set((await asked(served, greedy, **options)).text) == {"A", "B"}
    fresh = await asked(served, greedy, repetition_penalty=100.0)
    assert len(set(fresh.token_ids)) == 24


async def test_xtc_leaves_out_the_likeliest(served: Served) -> None:
    one = await asked(served, SEEDED, xtc_probability=1.0, xtc_threshold=0.0, logprobs=1)
    assert all(next(iter(token.top)) != token.token_id for token in one.logprobs)
    assert one.token_ids != (await asked(served, SEEDED)).token_ids


async def test_tokens_may_wait_for_each_other(served: Served) -> None:
    deltas = await served.streamed(ENDLESS, max_tokens=60, max_delay_s=10.0)
    assert len(deltas) == 2
    assert len(deltas[0].token_ids) == 1
    assert "".join(delta.text for delta in deltas) == "abc " * 15


@pytest.mark.parametrize("priority", ["bulk", "default", "interactive", "system"])
async def test_every_class_is_served_alike(served: Served, priority: Any) -> None:
    one = await served.completed("script", "\x02", priority=priority)
    assert one.text == SAYS["\x02"]


async def test_bulk_answers_that_lose_their_seats_go_on_where_they_were(served: Served) -> None:
    bulk: Options = {**SEEDED, "n": 4, "max_tokens": 400, "priority": "bulk", "logprobs": 1}
    calm = await asked(served, bulk)
    seen: set[int] = set()
    gathering = Gathering()
    async with aclosing(served.client.generate("tiny", PROMPT, **bulk)) as events:
        async for event in events:
            gathering.add(event)
            if isinstance(event, Delta):
                seen.add(event.index)
            if len(seen) == 4:  # each of the four rows
                break
        urgent = await asked(served, {**SEEDED, "max_tokens": 2}, priority="interactive")
        rest = [event async for event in events]
    assert len(urgent.token_ids) == 2
    for event in rest:
        gathering.add(event)
    assert sum(isinstance(event, Finished) for event in rest) == 4
    disturbed = gathering.completion()
    assert list(map(parts, disturbed.choices)) == list(map(parts, calm.choices))
    assert disturbed.usage.prompt_tokens == len(PROMPT)


async def cached(served: Served, text: str, hints: types_pb2.CacheHints) -> int:
    """Ask for one token; how much of the prompt was not computed."""
    request = generation_pb2.GenerateRequest(
        model="tiny", text=text, cache=hints, stop=types_pb2.StopConditions(max_tokens=1)
    )
    gathering = Gathering()
    async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
        async for response in RouterServiceStub(channel).Generate(request):
            if (event := replies.event(response)) is not None:
                gathering.add(event)
    return sum(gathering.completion().usage.cached_tokens.values())


async def test_what_is_computed_is_shared_within_a_salt_and_as_far_as_hints_allow(
    served: Served,
) -> None:
    text = "a prompt that nobody else has, long enough to be worth it"
    salted = types_pb2.CacheHints(salt="one")
    assert await cached(served, text, salted) == 0
    assert await cached(served, text, types_pb2.CacheHints(salt="other")) == 0
    assert await cached(served, text, types_pb2.CacheHints(salt="one", skip_lookup=True)) == 0
    assert await cached(served, text, salted) == len(text) - 1
    secret = text[::-1]
    assert await cached(served, secret, types_pb2.CacheHints(skip_store=True)) == 0
    assert await cached(served, secret, types_pb2.CacheHints()) == 0
