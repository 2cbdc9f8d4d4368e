"""When the store is asked what was said, and what is forgotten."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from bramley.worker import sessions
from bramley.worker.sessions import Sessions

AA = 200  # one id for two letters
PLAIN = [*b"qaa."]
SAID = [ord("q"), AA]


class Letters:
    """One byte is one token, but for one id."""

    added_ids = frozenset[int]()

    def token_bytes(self, number: int) -> bytes:
        return b"aa" if number == AA else bytes([number])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()


class Shop:
    """Sessions, and a store that recalls ``said`` for every one; None where there is none."""

    def __init__(self, text: ThreadPoolExecutor) -> None:
        self.sessions = Sessions(Letters(), text)
        self.said: list[bytes] | None = []
        self.asked: list[tuple[bytes, str]] = []

    async def recall(self, root: bytes, session_key: str) -> list[bytes] | None:
        self.asked.append((root, session_key))
        return self.said

    async def ids(self, root: bytes = b"r", session_key: str = "s") -> list[int]:
        return list(await self.sessions.ids(root, session_key, PLAIN, self.recall))


@pytest.fixture
async def shop() -> AsyncGenerator[Shop]:
    with ThreadPoolExecutor(1) as text:
        yield Shop(text)


async def test_what_is_kept_is_found_by_whoever_asks_next(shop: Shop) -> None:
    shop.sessions.keep(b"r", "s", SAID)
    assert await shop.ids() == [*SAID, ord(".")]
    assert await shop.ids(b"other") == PLAIN


async def test_the_store_is_asked_once_a_session_and_namespace(shop: Shop) -> None:
    shop.said = [array("I", SAID).tobytes()]
    for _ in range(2):
        assert await shop.ids() == [*SAID, ord(".")]
    assert shop.asked == [(b"r", "s")]
    await shop.ids(b"r", "")
    await shop.ids(b"q", "s")
    assert shop.asked == [(b"r", "s"), (b"r", ""), (b"q", "s")]


async def test_a_store_that_said_nothing_is_asked_again(shop: Shop) -> None:
    shop.said = None
    assert await shop.ids() == PLAIN
    shop.said = [array("I", SAID).tobytes()]
    assert await shop.ids() == [*SAID, ord(".")]


async def test_a_forgotten_session_is_not_asked_for(shop: Shop) -> None:
    shop.said = [array("I", SAID).tobytes()]
    assert not await shop.sessions.forget(b"r", "s")
    assert await shop.ids() == PLAIN
    shop.sessions.keep(b"r", "s", SAID)
    assert await shop.sessions.forget(b"r", "s")
    assert await shop.ids() == PLAIN
    assert shop.asked == []


async def test_a_forgotten_namespace_is_asked_for_again(shop: Shop) -> None:
    shop.sessions.keep(b"r", "s", SAID)
    await shop.ids()
    shop.sessions.forget_namespace(b"r")
    assert await shop.ids() == PLAIN
    assert shop.asked == [(b"r", "s")] * 2


async def test_of_too_many_sessions_the_first_is_asked_for_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ASKED_MAX", 2)
    for key in ("a", "b", "c", "b", "a"):
        await shop.ids(b"r", key)
    assert [key for _, key in shop.asked] == ["a", "b", "c", "a"]
