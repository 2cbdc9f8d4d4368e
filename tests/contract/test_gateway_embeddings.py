"""OpenAI's own client asks a router for embeddings."""

import base64
import json
import struct
from typing import Any

import openai
import pytest

from support.gateway import error_of, site


async def test_the_client_reads_vectors_in_either_encoding() -> None:
    async with site() as one:
        client: Any = one.client.embeddings
        answer = await client.create(model="fake", input=["ab", "c"], user="me")  # in base64
        assert [each.embedding for each in answer.data] == [[2, 195, 97, 98], [1, 99, 99, 99]]
        assert [each.index for each in answer.data] == [0, 1]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)
        assert (answer.object, answer.model, answer.data[0].object) == ("list", "fake", "embedding")
        floats = await client.create(
            model="fake", input="ab", encoding_format="float", dimensions=2
        )
        assert floats.data[0].embedding == [2, 195]
        ids = await client.create(model="fake", input=[7, 8, 9])
        assert ids.data[0].embedding == [3, 24, 7, 9]
        several = await client.create(model="fake", input=[[7], [8, 9]])
        assert [each.embedding[0] for each in several.data] == [1, 2]
        asked = one.bench.node.workers["fake"].embedded
        assert all(each.normalize for each in asked)
        raw = await one.post(
            "/v1/embeddings", {"model": "fake", "input": "a", "encoding_format": "base64"}
        )
        told = json.loads(raw.body)["data"][0]["embedding"]
        assert struct.unpack("<4f", base64.b64decode(told)) == (1, 97, 97, 97)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": ["a", 1]}, "input"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "truncate": True}, "truncate"),
    ({}, "input"),
]


async def test_what_is_wrong_is_400_by_its_name() -> None:
    async with site() as one:
        for fields, param in WRONG:
            answer = await one.post("/v1/embeddings", {"model": "fake", **fields})
            assert (answer.status, error_of(answer)["param"]) == (400, param)


async def test_an_unknown_model_is_404() -> None:
    async with site() as one:
        with pytest.raises(openai.NotFoundError):
            await one.client.embeddings.create(model="other", input="a")
