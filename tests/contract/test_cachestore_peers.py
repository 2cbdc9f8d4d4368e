"""Who may connect to the data socket: processes of the same user, each under a name of its own."""

import asyncio
import os
import socket
import stat
import struct
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore import passing, segments
from bramley.cachestore.passing import Greeting, What, connect, receive, user_of
from bramley.cachestore.segments import Segment
from support.store import PATIENCE_S, local_store, settings, until

GREETING = Greeting("c", inline=True)  # so that no descriptor has to be closed
OTHER = 12345


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


class Told(socket.socket):
    """A connection of which the kernel tells as it is bidden."""

    answer = b""
    asked: tuple[int, int, int] = (0, 0, 0)

    def getsockopt(self, *arguments: int) -> bytes:  # type: ignore[override]
        """Answer, and remember the question."""
        self.asked = (arguments[0], arguments[1], arguments[2])
        return self.answer


def test_the_kernel_tells_whose_a_connection_is(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert [user_of(end) for end in pair] == [os.geteuid()] * 2


def test_macos_is_asked_for_its_own_structure() -> None:
    with Told() as peer:
        peer.answer = struct.pack("=IIh2x16I", 0, OTHER, 1, *range(16))
        assert user_of(peer, "darwin") == OTHER
        assert peer.asked == (0, 1, len(peer.answer))
        peer.answer = struct.pack("=II", 1, OTHER)
        with pytest.raises(OSError, match="version 1"):
            user_of(peer, "darwin")


def test_where_the_platform_does_not_tell_nobody_is_taken_for_another(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert user_of(pair[0], "plan9") is None


async def answers(path: str, greeting: Greeting) -> bool:
    """Whether a store lets one in who greets it so."""
    try:
        peer = await connect(path, greeting)
        with peer:
            return (await receive(peer)).what is What.READY
    except ConnectionError:
        return False


async def test_another_user_s_connection_is_refused_and_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with local_store(settings()) as (process, _):
        path = process.addresses["data"]
        assert await answers(path, GREETING)
        user: int | None = OTHER

        def told(_: socket.socket) -> int | None:
            return user

        monkeypatch.setattr(passing, "user_of", told)
        assert not await answers(path, GREETING)
        refusal = next(one for one in caplog.records if "another user" in one.getMessage())
        assert vars(refusal)["facts"] == {"user": OTHER}
        user = None
        assert await answers(path, Greeting("d", inline=True))


async def test_a_connection_that_is_gone_before_it_was_asked_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_: socket.socket) -> int:
        raise OSError("not connected")

    async with local_store(settings()) as (process, _):
        path = process.addresses["data"]
        with monkeypatch.context() as patch:
            patch.setattr(passing, "user_of", gone)
            assert not await answers(path, GREETING)
        assert await answers(path, GREETING)


async def test_nobody_can_have_the_store_s_own_name() -> None:
    async with local_store(settings()) as (process, _):
        assert not await answers(process.addresses["data"], Greeting("", inline=True))


async def test_the_sockets_are_in_a_folder_of_ours_and_the_data_socket_is_ours_alone() -> None:
    async with local_store(settings()) as (process, _):
        data = Path(process.addresses["data"])
        assert stat.S_IMODE(os.lstat(data).st_mode) == 0o600
        assert stat.S_IMODE(os.lstat(data.parent).st_mode) == 0o700


async def test_of_two_that_come_by_one_name_at_once_only_one_keeps_a_staging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, real, kept = threading.Barrier(2, timeout=PATIENCE_S), segments.create, list[Segment]()

    def create(size: int, **chosen: Any) -> Segment:
        both.wait()
        segment = real(size, **chosen)
        close = segment.close_descriptors
        kept.append(segment)

        def closed() -> None:
            kept.remove(segment)
            close()

        monkeypatch.setattr(segment, "close_descriptors", closed)
        return segment

    monkeypatch.setattr(passing, "create", create)
    async with local_store(settings()) as (process, _):
        path, greeting = process.addresses["data"], Greeting("twice")
        peers = [await connect(path, greeting) for _ in range(2)]
        told = await asyncio.gather(*map(receive, peers), return_exceptions=True)
        assert sum(isinstance(one, ConnectionError) for one in told) == 1
        assert len(kept) == 1
        for one in told:
            if isinstance(one, passing.Told) and one.fd is not None:
                os.close(one.fd)
        for peer in peers:
            peer.close()
        await until(lambda: not kept)
