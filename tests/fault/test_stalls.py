"""A step that never ends: the worker is ended by its own watchdog, and another serves on."""

import asyncio
import json
import sys
import time
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from bramley.client.events import Delta
from bramley.common.status import RemoteError
from support.served import serving

WORKER = Path(__file__).parents[1] / "support" / "hanging_worker.py"
HANGS = 251  # as hanging_worker.py has it, whose import would load MLX
STALL_S = 1.0


def settings(models: Path) -> str:
    command = json.dumps([sys.executable, "-P", str(WORKER)])
    return f"""
[models.tiny]
path = "{models}/tiny"
stall_timeout_s = {STALL_S}
[node]
worker_command = {command}
"""


async def test_a_request_that_hangs_two_workers_is_given_to_no_third_and_others_are_served(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, settings) as served:
        expected = await served.completed("tiny", "once", max_tokens=8)
        first = await served.cluster.running("worker", "tiny")
        began = asyncio.Event()

        async def beside() -> None:
            call = served.client.generate("tiny", "x", max_tokens=4000, ignore_eos=True)
            async with aclosing(call) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        began.set()

        neighbour = asyncio.create_task(beside())
        await served.cluster.within(began.wait())
        hung_s = time.monotonic()
        hanging = served.client.complete("tiny", token_ids=[HANGS] * 40, max_tokens=4)
        with pytest.raises(RemoteError) as raised:
            await served.cluster.within(hanging)
        with pytest.raises(RemoteError) as beside_it:
            await served.cluster.within(neighbour)
        assert raised.value.status_code is grpc.StatusCode.INTERNAL
        assert raised.value.reason == "POISON_REQUEST"
        assert beside_it.value.status_code is grpc.StatusCode.UNAVAILABLE
        assert beside_it.value.reason == "WORKER_LOST"
        assert time.monotonic() - hung_s > 2 * STALL_S
        again = await served.cluster.within(served.completed("tiny", "once", max_tokens=8))
        assert again.token_ids == expected.token_ids
        second = await served.cluster.running("worker", "tiny", after=first.epoch)
        assert second.epoch >= first.epoch + 2
        assert "inside one step for over 1 s" in served.cluster.log("worker", "tiny")
