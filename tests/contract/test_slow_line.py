"""A router that is far away, or whose machine is busy, is reached all the same."""

import asyncio
import time

import grpc
import pytest

from bramley.common.rpc import open_channel
from bramley.protos.v1 import router_pb2, router_pb2_grpc
from support.routing import WAIT_S, routed

LATE_S = 0.4
ASK = router_pb2.GetStatusRequest()


async def test_a_handshake_may_take_longer_than_a_pause_between_attempts() -> None:
    async with routed(is_ready=False) as bench:
        host, _, port = bench.router.addresses["grpc"].rpartition(":")

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)
            writer.close()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(LATE_S)
            behind, before = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pass_on(reader, before), pass_on(behind, writer))

        async with await asyncio.start_server(late, "127.0.0.1", 0) as line:
            address = f"127.0.0.1:{line.sockets[0].getsockname()[1]}"
            async with open_channel(address) as channel:
                stub = router_pb2_grpc.RouterServiceStub(channel)
                assert await stub.GetStatus(ASK, timeout=WAIT_S)


async def test_a_router_that_comes_back_is_reached_at_once() -> None:
    async with routed(is_ready=False) as bench:
        address = bench.router.addresses["grpc"]
    async with open_channel(address) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        waiting = stub.GetStatus(ASK, timeout=WAIT_S, wait_for_ready=True)
        while channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await asyncio.wait_for(channel.wait_for_state_change(channel.get_state()), WAIT_S)
        server = grpc.aio.server()
        assert server.add_insecure_port(address)
        begun_s = time.monotonic()
        await server.start()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert time.monotonic() - begun_s < 2.5
        await server.stop(None)
