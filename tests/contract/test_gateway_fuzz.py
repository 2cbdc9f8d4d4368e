"""Bad requests of every kind: each is refused in its dialect's words, and none leaves anything.

A failure names its seed: ``pytest -k 'fuzz and SEED'`` sends the same requests again.
"""

import asyncio
import gc
import json
import random
from typing import Any

import psutil
import pytest

from support.fuzz import ENDPOINTS, Endpoint, Sent, bad_request, good_request
from support.gateway import Site, site, unchunked
from support.http import Answer, parsed, scrape, series
from support.routing import until

ABREAST = 8
ANSWER_S = 30.0
GROWTH_BYTES_MAX = 48 << 20
DESCRIPTORS_MAX = 4  # that a library may keep from its first use on


async def exchanged(one: Site, data: bytes, *, leaves: bool = False) -> bytes:
    """Send bytes on a connection of their own, leave or stay, and read all that comes."""
    host, _, port = one.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        if leaves:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), ANSWER_S)
    except ConnectionError:
        return b""  # it was told off before it had said all
    finally:
        writer.close()


def check(sent: Sent, told: bytes) -> None:
    """Look at what came back."""
    if not sent.is_http and not told:
        return
    answer = parsed(told)
    assert answer.status in sent.statuses, (sent.how, answer)
    if sent.is_http and answer.status != 200:
        check_error(sent.endpoint, answer)


def check_error(endpoint: Endpoint, answer: Answer) -> None:
    """Look whether an answer is an error of its dialect."""
    assert answer.headers["content-type"] == "application/json", answer
    told: Any = json.loads(unchunked(answer))
    error = told["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert isinstance(error["type"], str)
    if endpoint.shape == "openai":
        assert told.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] is None or isinstance(error["param"], str)
    else:
        assert (told["type"], told.keys() >= {"type", "error"}) == ("error", True)


async def check_good(one: Site) -> None:
    """Look whether a good request of each kind is still answered right."""
    for endpoint in ENDPOINTS:
        answer = parsed(await exchanged(one, good_request(endpoint)))
        assert answer.status == 200, (endpoint.path, answer)
        if endpoint.body is not None:
            assert b"error" not in answer.body.replace(b'"error":null', b""), answer
            told = unchunked(answer)
            assert any(word in told for word in (b"0 ", b"input_tokens", b"embedding")), answer


async def fuzzed(seed: int, count: int) -> None:
    rng = random.Random(seed)  # noqa: S311 -- a test's
    process = psutil.Process()
    async with site() as one:
        await check_good(one)
        tasks, descriptors = len(asyncio.all_tasks()), process.num_fds()
        resident = 0
        for at in range(0, count, ABREAST):
            sent = [bad_request(rng) for _ in range(min(ABREAST, count - at))]
            answers = await asyncio.gather(
                *[exchanged(one, each.data, leaves=not each.is_http) for each in sent]
            )
            for each, told in zip(sent, answers, strict=True):
                check(each, told)
            if not resident:
                resident = process.memory_info().rss
        await check_good(one)
        worker, registry = one.bench.node.workers["fake"], one.bench.router.server.registry
        await until(lambda: len(registry) == 0 and worker.running == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        found = await scrape(one.address)
        assert found[series("http_connections")] == 1
        assert found[series("http_body_bytes")] == 0
        gc.collect()
        await until(lambda: process.num_fds() <= descriptors + DESCRIPTORS_MAX)
        assert process.memory_info().rss - resident < GROWTH_BYTES_MAX


@pytest.mark.parametrize("seed", [1])
async def test_bad_requests_are_refused_and_leave_nothing(seed: int) -> None:
    await fuzzed(seed, 300)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2])
async def test_ten_thousand_bad_requests_are_refused_and_leave_nothing(seed: int) -> None:
    await fuzzed(seed, 10_000)
