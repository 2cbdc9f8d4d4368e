"""A router's HTTP side and OpenAI's own client, for contract tests of the gateway."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from support.http import Answer, fetch
from support.routing import Bench, routed
from support.script import Script

HTTP = "127.0.0.1:0"
HELLO: Any = [{"role": "user", "content": "hello"}]


class Site(NamedTuple):
    """What a test talks to."""

    client: AsyncOpenAI
    bench: Bench

    @property
    def address(self) -> str:
        """Of the HTTP side."""
        return self.bench.router.addresses["http"]

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send a body, plain values or bytes, and read all that comes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", "content-length": str(len(data))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await fetch(self.address, path, method="POST", headers=sent, body=data)


@asynccontextmanager
async def site(script: Script | None = None, **settings: Any) -> AsyncGenerator[Site]:
    """Run a router over fake workers, with its HTTP side, for the length of the block."""
    async with routed(script, http=HTTP, **settings) as bench:
        base = f"http://{bench.router.addresses['http']}/v1"
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            yield Site(client, bench)


def events(answer: Answer) -> list[Any]:
    """Take a stream's body apart: values, and "[DONE]" as it is."""
    found: list[Any] = []
    for block in unchunked(answer).decode().split("\n\n"):
        if block:
            data = block.removeprefix("data: ")
            assert data != block, block
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def unchunked(answer: Answer) -> bytes:
    """Join the pieces of a chunked body."""
    if answer.headers.get("transfer-encoding") != "chunked":
        return answer.body
    whole, rest = b"", answer.body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
        if not length:
            return whole
    raise AssertionError("the body broke off")


def error_of(answer: Answer) -> Any:
    """The error that an answer is."""
    return json.loads(unchunked(answer))["error"]
