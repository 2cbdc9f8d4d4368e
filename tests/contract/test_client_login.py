"""What the Python client shows to a router, and when it does so through TLS."""

import asyncio
from pathlib import Path

import grpc
import pytest

from bramley.client import AsyncClient, Client
from bramley.client.login import Login
from bramley.common.errors import InvalidRequest
from bramley.common.status import RemoteError
from support.certificates import Authority
from support.routing import routed
from support.script import Script
from support.tokens import Tokens


def complete(target: str, login: Login) -> str:
    with Client(target, **login) as client:
        assert client.status().draining is False
        return client.complete("fake", "hi", timeout_s=10).text


async def complete_async(target: str, login: Login) -> str:
    async with AsyncClient(target, **login) as client:
        assert (await client.status()).draining is False
        return (await client.complete("fake", "hi", timeout_s=10)).text


async def test_a_token_and_an_authority_are_all_it_takes(tmp_path: Path) -> None:
    tokens, authority = Tokens(tmp_path), Authority(tmp_path)
    tokens.add("alice")
    login = Login(token=tokens.of["alice"], ca=authority.file)
    async with routed(Script(tokens=2), auth=tokens.settings, tls=authority.server()) as bench:
        target = bench.router.addresses["grpc"]
        assert await asyncio.to_thread(complete, target, login) == "0 1 "
        assert await complete_async(target, login) == "0 1 "


async def test_a_client_shows_its_certificate_where_there_is_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("mine", "mine")
    login = Login(ca=Path(authority.file), certificate=mine.certificate, key=mine.key)
    async with routed(Script(tokens=2), tls=authority.server(authority.file)) as bench:
        target = bench.router.addresses["grpc"]
        assert await asyncio.to_thread(complete, target, login) == "0 1 "
        assert await complete_async(target, login) == "0 1 "
        async with AsyncClient(target, ca=authority.file) as stranger:
            with pytest.raises(RemoteError) as refused:
                await stranger.status()
            assert refused.value.status_code is grpc.StatusCode.UNAVAILABLE


async def test_on_loopback_a_token_needs_no_tls(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.add("alice")
    async with routed(Script(tokens=2), auth=tokens.settings) as bench:
        for target in (bench.router.addresses["grpc"], bench.router.addresses["socket"]):
            assert await complete_async(target, Login(token=tokens.of["alice"])) == "0 1 "
        async with AsyncClient(bench.router.addresses["grpc"], token="wrong") as client:  # noqa: S106
            with pytest.raises(RemoteError) as refused:
                await client.status()
            assert refused.value.status_code is grpc.StatusCode.UNAUTHENTICATED


async def test_another_authority_s_router_is_not_talked_to(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    async with (
        routed(models=(), tls=authority.server()) as bench,
        AsyncClient(bench.router.addresses["grpc"], ca=stranger.file) as client,
    ):
        with pytest.raises(RemoteError) as refused:
            await client.status()
        assert "CERTIFICATE_VERIFY_FAILED" in refused.value.message


async def test_beyond_loopback_nothing_is_said_in_the_clear() -> None:
    heard = asyncio.Event()
    first = b""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        first = await reader.read(3)
        heard.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        # A name of this machine that is not known to be one: as good as any other host.
        async with AsyncClient(f"ipv4:127.0.0.1:{port}", token="secret") as client:  # noqa: S106
            asking = asyncio.create_task(client.status())
            await asyncio.wait_for(heard.wait(), 10)
            asking.cancel()
    assert first[:2] == b"\x16\x03"  # a handshake of TLS


BAD_TOKENS = ("", "two words", "line\n", "t\u00f6ken")


@pytest.mark.parametrize(
    ("field", "target", "login"),
    [
        ("ca", "localhost:1", Login(ca="/nowhere/ca.pem")),
        ("key", "localhost:1", Login(ca=__file__, certificate=__file__)),
        ("certificate", "localhost:1", Login(ca=__file__, key=__file__)),
        ("ca", "localhost:1", Login(certificate=__file__, key=__file__)),
        *[("token", "localhost:1", Login(token=token)) for token in BAD_TOKENS],
    ],
)
def test_what_cannot_be_shown_is_refused_by_its_keyword(
    field: str, target: str, login: Login
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client(target, **login)
    assert refused.value.field == field
    assert not login.get("token") or login.get("token", "") not in refused.value.message
