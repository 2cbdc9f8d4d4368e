"""Embeddings of a real worker, through gRPC and HTTP, beside a stream that loses nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from bramley.common.status import RemoteError
from support.served import Served, serving


async def test_vectors_are_the_same_by_every_way_and_beside_a_stream(served: Served) -> None:
    alone = await served.completed("tiny", "Once", max_tokens=24)
    texts = ["a", "some words", "and some more words " * 40]
    stream = asyncio.create_task(served.completed("tiny", "Once", max_tokens=24))
    found = await served.client.embed("tiny", texts, normalize=True)
    assert (await stream).token_ids == alone.token_ids
    ids = [await served.client.tokenize("tiny", text) for text in texts]
    assert [one.prompt_tokens for one in found] == [*map(len, ids)]
    by_ids = await served.client.embed("tiny", token_ids=ids, normalize=True)
    base = f"http://{served.cluster.node.addresses['http']}/v1"
    async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as made:
        client: Any = made
        answer = await client.embeddings.create(model="tiny", input=texts)
    for one, same, told in zip(found, by_ids, answer.data, strict=True):
        assert sum(value * value for value in one.values) == pytest.approx(1, abs=1e-5)
        assert [*one.values] == pytest.approx([*same.values], abs=1e-5)
        assert [*one.values] == pytest.approx(told.embedding, abs=1e-5)
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    last = await served.client.embed("tiny", "abc", pooling="last", dimensions=5)
    assert len(last[0].values) == 5


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"texts": ["ok", "too long " * 20]}, "texts[1]"),
        ({"texts": [""]}, "texts[0]"),
        ({"token_ids": [[1], [100_000]]}, "token_ids[1]"),
        ({"texts": ["a"], "dimensions": 4096}, "dimensions"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_place(
    served: Served, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RemoteError) as raised:
        await served.client.embed("small", **options)
    assert (raised.value.code, raised.value.field) == ("INVALID_ARGUMENT", field)


TWO = """
[models.tiny]
path = "{models}/tiny"
replicas = 2
"""
TEXTS = [f"word{number} " * (1 + 7 * number % 60) for number in range(60)]


@pytest.mark.slow
async def test_vectors_stay_the_same_while_others_leave_and_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, lambda models: TWO.format(models=models)) as served:
        alone = [(await served.client.embed("tiny", text))[0].values for text in TEXTS]
        streams = [asyncio.create_task(stream_of(served, number)) for number in range(4)]
        calls = [asyncio.create_task(served.client.embed("tiny", TEXTS)) for _ in range(12)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in calls[::3]:
            call.cancel()
        await served.cluster.kill("worker", "tiny")
        found = await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*streams)
        told = [one for one in found if isinstance(one, list)]
        failed = [one for one in found if isinstance(one, Exception)]
        assert not failed
        assert len(told) >= 8
        for vectors in told:
            for one, same in zip(vectors, alone, strict=True):
                assert [*one.values] == pytest.approx([*same], rel=1e-4, abs=1e-4)
        await served.idle("tiny")


async def stream_of(served: Served, number: int) -> None:
    """Ask for an answer, which the kill may end."""
    try:
        await served.completed("tiny", f"Say {number}", max_tokens=24)
    except RemoteError as error:
        assert error.code == "UNAVAILABLE"  # noqa: PT017 it need not be raised
