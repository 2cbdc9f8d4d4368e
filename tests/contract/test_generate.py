"""What a Generate stream promises, against the router and fake workers."""

import asyncio

import grpc
import pytest

from bramley.common.status import RemoteError
from bramley.protos.v1 import types_pb2
from support.routing import ask, collect, kinds_of, routed, text_of, until
from support.script import Script


async def test_a_stream_is_accepted_started_deltas_finished_ok() -> None:
    async with routed(Script(tokens=50)) as bench:
        responses = await collect(bench.stub.Generate(ask()))
        assert kinds_of(responses) == ["accepted", "started", "delta", "finished"]
        assert text_of(responses) == "".join(f"{n} " for n in range(50))
