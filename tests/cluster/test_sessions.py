"""Conversations with real workers: what a model said is taken up in its own ids."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from bramley.client.events import Completion
from bramley.client.requests import Message
from support.served import Served, serving

SETTINGS = """
[models.one]
path = "{models}/words"
parked_bytes = 0  # what is shown is the store
[store]
ram_bytes = 200000000
disk_bytes = 0
"""
TOKENS = 300
# One letter at a time, where the tokenizer would write two or four.
LETTERS = {ord("a"): 100.0, ord("b"): 100.0}


@pytest.fixture(scope="module")
async def stored(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    folder = tmp_path_factory.mktemp("sessions")
    async with serving(folder, lambda models: SETTINGS.format(models=models)) as made:
        yield made


async def ask(
    stored: Served,
    messages: Sequence[Message],
    session: str = "",
    *,
    salt: str = "",
    max_tokens: int = 1,
) -> Completion:
    return await stored.client.complete(
        "one",
        messages=messages,
        temperature=5.0,
        seed=1,
        max_tokens=max_tokens,
        logit_bias=LETTERS,
        session_key=session,
        salt=salt,
    )


class Talk:
    """A question, an answer, and what follows."""

    def __init__(self, stored: Served, session: str, *, salt: str = "") -> None:
        self._stored = stored
        self._session = session
        self._salt = salt
        self.messages: list[Message] = []
        self.tokens = 0  # of question and answer, whose state may be stored

    async def begin(self, name: str) -> None:
        question: Message = {"role": "user", "content": f"say something, {name}"}
        answer = await ask(
            self._stored, [question], self._session, salt=self._salt, max_tokens=TOKENS
        )
        assert set(answer.text) == {"a", "b"}
        assert len(answer.token_ids) == TOKENS
        self.tokens = answer.usage.prompt_tokens + TOKENS - 1  # the last one was not fed
        self.messages = [
            question,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "go on"},
        ]

    async def found(self, session: str | None = None, salt: str | None = None) -> int:
        """Go on; how many tokens were in the store."""
        answer = await ask(
            self._stored,
            self.messages,
            self._session if session is None else session,
            salt=self._salt if salt is None else salt,
        )
        return sum(answer.usage.cached_tokens.values())

    async def until_found(self) -> None:
        """Go on until all of it was: publishing is not waited for."""

        async def wait() -> None:
            while await self.found() < self.tokens:  # noqa: ASYNC110 another process publishes
                await asyncio.sleep(0.05)

        await self._stored.cluster.within(wait())


async def plain_tokens(stored: Served, messages: Sequence[Message]) -> int:
    return len(await stored.client.tokenize("one", messages=messages))


async def test_an_answer_is_found_in_the_tokens_that_it_was_drawn_in(stored: Served) -> None:
    talk = Talk(stored, "s")
    await talk.begin("drawn")
    assert await plain_tokens(stored, talk.messages[:2]) < talk.tokens
    await talk.until_found()
    told = await stored.client.explain_cache("one", messages=talk.messages)
    assert sum(told.cached_tokens.values()) >= talk.tokens


async def test_a_conversation_without_a_session_is_found_by_its_text(stored: Served) -> None:
    talk = Talk(stored, "")
    await talk.begin("no session")
    await talk.until_found()


async def test_another_salt_takes_neither_ids_nor_state(stored: Served) -> None:
    talk = Talk(stored, "s", salt="mine")
    await talk.begin("salted")
    await talk.until_found()
    assert await talk.found(salt="other") == 0
    answer = await ask(stored, talk.messages, "s", salt="another")
    assert answer.usage.prompt_tokens == await plain_tokens(stored, talk.messages)


async def test_a_worker_that_was_started_again_recalls_what_was_said(stored: Served) -> None:
    keyed, unkeyed = Talk(stored, "recalled"), Talk(stored, "")
    for talk in (keyed, unkeyed):
        await talk.begin(f"{talk} recalled")
        await talk.until_found()
    killed = await stored.cluster.kill("worker", "one")
    await stored.cluster.running("worker", "one", after=killed.epoch)
    await stored.ready("one")
    # The last token, which nobody stored, may be one with letters before it.
    assert await keyed.found() > keyed.tokens - 4
    assert await unkeyed.found() > unkeyed.tokens - 4


async def test_a_closed_session_is_forgotten_once(stored: Served) -> None:
    talk = Talk(stored, "closed")
    await talk.begin("closed")
    await talk.until_found()
    assert await stored.client.close_session("one", "closed")
    assert not await stored.client.close_session("one", "closed")
    answer = await ask(stored, talk.messages, "closed")
    assert answer.usage.prompt_tokens == await plain_tokens(stored, talk.messages)
    assert not await stored.client.close_session("one", "closed", salt="other")
