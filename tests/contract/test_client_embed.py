"""Embeddings of both clients and of the command line, through a router over a fake worker."""

import asyncio
import json
import subprocess
import sys

import pytest

from bramley.client import AsyncClient, Client
from bramley.common.errors import InvalidRequest
from bramley.common.status import RemoteError
from support.routing import routed


async def test_both_clients_and_the_command_tell_the_same_vectors() -> None:
    async with routed() as bench:
        target = bench.router.addresses["grpc"]

        def blocking() -> object:
            with Client(target) as client:
                return client.embed("fake", "ab", token_ids=[[7, 8]], pooling="last", dimensions=3)

        async with AsyncClient(target) as client:
            found = await client.embed(
                "fake", ["ab"], token_ids=[[7, 8]], pooling="last", dimensions=3
            )
            assert [list(one.values) for one in found] == [[2, 195, 97], [2, 15, 7]]
            assert [one.prompt_tokens for one in found] == [2, 2]
            assert await asyncio.to_thread(blocking) == found
            with pytest.raises(RemoteError) as raised:
                await client.embed("fake")
            assert raised.value.field == "texts"
            with pytest.raises(InvalidRequest):
                await client.embed("fake", "a", pooling="max")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await client.embed("fake", "a", priority="high")  # type: ignore[arg-type]
        command = ["--address", target, "embed", "fake", "ab", "c", "--normalize"]
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "bramley.client", *command],
            capture_output=True,
            check=True,
        )
        told = json.loads(done.stdout)
        assert told == {"embeddings": [[2, 195, 97, 98], [1, 99, 99, 99]], "prompt_tokens": [2, 1]}
        asked = bench.node.workers["fake"].embedded
        assert [(one.last_token, one.normalize) for one in asked] == [(1, 0), (1, 0), (0, 1)]
