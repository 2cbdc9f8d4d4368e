"""A plain HTTP client for tests, and what a scrape of metrics holds."""

import asyncio
import ssl
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Answer(NamedTuple):
    """What came back; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def fetch(
    address: str,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Ask once, on a connection of its own."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    lines = [f"{method} {path} HTTP/1.1", f"host: {address}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    try:
        return parsed(await reader.read())
    finally:
        writer.close()


def parsed(answer: bytes) -> Answer:
    """Take an answer apart."""
    head, _, told = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in rest)
    return Answer(int(first.split()[1]), {name.lower(): value for name, value in pairs}, told)


Series = tuple[str, frozenset[tuple[str, str]]]


async def scrape(address: str) -> dict[Series, float]:
    """Read every series, each by its name and labels: what ``series`` makes."""
    text = (await fetch(address, "/metrics")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(name: str, **labels: str) -> Series:
    """Name a series of the router."""
    return f"bramley_router_{name}", frozenset(labels.items())
