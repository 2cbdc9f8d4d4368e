"""What needs TLS, and which certificates a server shows: now, and after their files changed."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bramley.common.errors import SettingsError
from bramley.common.rpc import add_health, bind, new_server
from bramley.common.tls import Certificates, TlsSettings, check_reach, is_local, read
from support.certificates import Authority, Issued

TLS = TlsSettings(certificate="c", key="k")
MUTUAL = TlsSettings(certificate="c", key="k", client_ca="a")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "127.3.2.1:0", "localhost:7410", "[::1]:7410", "unix:/tmp/router.sock"],
)
def test_loopback_and_sockets_need_nothing(address: str) -> None:
    assert is_local(address)
    check_reach({"router.grpc": address}, TlsSettings(), has_auth=False)


BEYOND = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "mac.local:1", "localhost.evil.org:1", "128.0.0.1:1"]


@pytest.mark.parametrize("address", [*BEYOND, "[::ffff:10.0.0.1]:1", "2130706433:1", ":1"])
def test_any_other_address_needs_tls_and_somebody_at_the_door(address: str) -> None:
    assert not is_local(address)
    for tls, has_auth in ((TlsSettings(), True), (TLS, False)):
        with pytest.raises(SettingsError) as refused:
            check_reach({"router.http": "", "router.grpc": address}, tls, has_auth=has_auth)
        assert refused.value.key == "router.grpc"
    check_reach({"router.grpc": address}, TLS, has_auth=True)
    check_reach({"router.grpc": address}, MUTUAL, has_auth=False)


@pytest.mark.parametrize(
    ("missing", "tls"),
    [
        ("key", TlsSettings(certificate="c")),
        ("certificate", TlsSettings(key="k")),
        ("certificate", TlsSettings(client_ca="a")),
    ],
)
def test_half_of_a_certificate_is_refused(missing: str, tls: TlsSettings) -> None:
    with pytest.raises(SettingsError) as refused:
        check_reach({}, tls, has_auth=True)
    assert refused.value.key == f"router.tls.{missing}"


def test_files_that_cannot_be_used_are_refused_by_their_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good = authority.server(authority.file)
    other = authority.issue("other")
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o600)
    read(good)
    for change, key in (
        ({"certificate": str(tmp_path / "nowhere")}, "certificate"),
        ({"key": str(tmp_path / "nowhere")}, "key"),
        ({"client_ca": str(tmp_path / "nowhere")}, "client_ca"),
        ({"certificate": str(text)}, "certificate"),
        ({"key": str(text)}, "certificate"),
        ({"key": other.key}, "certificate"),  # of another pair
        ({"client_ca": str(text)}, "client_ca"),
    ):
        with pytest.raises(SettingsError) as refused:
            Certificates(msgspec.structs.replace(good, **change))
        assert refused.value.key == f"router.tls.{key}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    tls = Authority(tmp_path).server()
    Path(tls.key).chmod(mode)
    with pytest.raises(SettingsError) as refused:
        read(tls)
    assert refused.value.key == "router.tls.key"
    assert "chmod 600" in refused.value.problem


@asynccontextmanager
async def served(tls: TlsSettings) -> AsyncGenerator[int]:
    server = new_server()
    add_health(server)
    port = bind(server, "127.0.0.1:0", Certificates(tls).credentials())
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def answers(port: int, trusted: Authority, client: Issued | None = None) -> bool:
    """Whether a new connection is served."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    credentials = trusted.channel(client)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            return True
        return False


async def test_a_client_checks_who_signed_and_for_which_host(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    async with served(authority.server()) as port:
        assert await answers(port, authority)
        assert not await answers(port, stranger)
    async with served(authority.server("", "elsewhere.org")) as port:
        assert not await answers(port, authority)


async def test_without_tls_nobody_gets_in(tmp_path: Path) -> None:
    async with (
        served(Authority(tmp_path).server()) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await health.Check(health_pb2.HealthCheckRequest())


async def test_a_server_with_an_authority_for_clients_serves_only_those_it_signed(
    tmp_path: Path,
) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    mine, stranger = clients.issue("mine", "mine"), authority.issue("stranger", "stranger")
    async with served(authority.server(clients.file)) as port:
        assert await answers(port, authority, mine)
        assert not await answers(port, authority, stranger)
        assert not await answers(port, authority)


async def test_a_changed_certificate_is_shown_to_the_next_connection(tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    async with served(before.server()) as port:
        assert await answers(port, before)
        after.server()
        assert await answers(port, after)
        assert not await answers(port, before)


async def test_a_broken_certificate_keeps_the_old_one_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, next_one = Authority(tmp_path), Authority(tmp_path, "next")
    tls = authority.server()
    async with served(tls) as port:
        authority.issue("other").replace(certificate=tls.certificate)
        with caplog.at_level(logging.ERROR):
            assert await answers(port, authority)
            assert await answers(port, authority)
        assert len(caplog.records) == 1
        assert "router.tls.certificate" in caplog.text
        next_one.server()
        assert await answers(port, next_one)


async def test_half_of_a_new_pair_keeps_the_old_one_until_the_other_half_comes(
    tmp_path: Path,
) -> None:
    authority, next_one = Authority(tmp_path), Authority(tmp_path, "next")
    tls = authority.server()
    async with served(tls) as port:
        new = next_one.issue("new")
        new.replace(certificate=tls.certificate)
        assert await answers(port, authority)
        new.replace(key=tls.key)
        assert await answers(port, next_one)


async def handshake(port: int, ca: str) -> bool:
    context = ssl.create_default_context(cafile=ca)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_an_http_server_follows_its_files_too(tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    context = Certificates(before.server()).context()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        port: int = server.sockets[0].getsockname()[1]
        assert await handshake(port, before.file)
        after.server()
        assert await handshake(port, after.file)
        assert not await handshake(port, before.file)
