"""Conversations with real workers: what a model said is taken up in its own ids."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from bramley.client.events import Completion
from bramley.client.requests import Message, Options, generate_request
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from bramley.protos.v1.worker_pb2_grpc import WorkerServiceStub
from support.served import PRIMER, Served, serving

SETTINGS = """
[models.one]
path = "{models}/words"
parked_bytes = 0  # what is shown is the store
[models.tight]
path = "{models}/words"
context_tokens = 350  # a turn of single letters fits, but not what follows
[models.primed]
path = "{models}/primed"
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
    model: str = "one",
) -> Completion:
    return await stored.client.complete(
        model,
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

    def __init__(self, stored: Served, session: str, *, salt: str = "", model: str = "one") -> None:
        self._stored = stored
        self._session = session
        self._salt = salt
        self._model = model
        self.messages: list[Message] = []
        self.tokens = 0  # of question and answer, whose state may be stored

    async def begin(self, name: str) -> None:
        question: Message = {"role": "user", "content": f"say something, {name}"}
        answer = await ask(
            self._stored,
            [question],
            self._session,
            salt=self._salt,
            max_tokens=TOKENS,
            model=self._model,
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


async def test_ids_that_take_more_room_than_there_is_are_not_taken(stored: Served) -> None:
    talk = Talk(stored, "tight", model="tight")
    await talk.begin("tight")
    answer = await ask(stored, talk.messages, "tight", model="tight")
    plain = await plain_tokens(stored, talk.messages)
    assert answer.usage.prompt_tokens == plain < talk.tokens


async def test_who_takes_nothing_from_the_cache_gets_the_tokenizer_s_ids(stored: Served) -> None:
    talk = Talk(stored, "unhinted")
    await talk.begin("unhinted")
    plain = await plain_tokens(stored, talk.messages)
    assert (await ask(stored, talk.messages)).usage.prompt_tokens > plain
    assert await hinted(stored, talk.messages, skip_lookup=True) == ("", plain)


async def test_of_who_leaves_nothing_in_the_cache_no_ids_are_kept(stored: Served) -> None:
    question: Message = {"role": "user", "content": "say something, unkept"}
    text, _ = await hinted(stored, [question], max_tokens=TOKENS, skip_store=True)
    assert set(text) == {"a", "b"}
    following: list[Message] = [question, {"role": "assistant", "content": text}]
    answer = await ask(stored, following)
    assert answer.usage.prompt_tokens == await plain_tokens(stored, following)


async def hinted(
    stored: Served,
    messages: Sequence[Message],
    *,
    max_tokens: int = 1,
    skip_lookup: bool = False,
    skip_store: bool = False,
) -> tuple[str, int]:
    """Ask with hints for the cache.

    Returns:
        The text of a longer answer, and how many tokens the prompt had.
    """
    options: Options = {"messages": messages, "logit_bias": LETTERS, "temperature": 5.0}
    request = generate_request("one", None, {**options, "max_tokens": max_tokens})
    hints = types_pb2.CacheHints(skip_lookup=skip_lookup, skip_store=skip_store)
    request.cache.CopyFrom(hints)
    text, tokens = "", 0
    async with open_channel(stored.cluster.node.addresses["grpc"]) as channel:
        async for response in RouterServiceStub(channel).Generate(request):
            text += response.delta.text
            tokens = response.finished.usage.prompt_tokens
    return text if max_tokens > 1 else "", tokens


async def test_what_the_next_turn_shares_is_counted_in_the_ids_that_are_used(
    stored: Served,
) -> None:
    begun = await stored.completed(
        "primed", "<|start|>user\n", temperature=5.0, max_tokens=100, logit_bias=LETTERS
    )
    request = generate_request(
        "primed", None, {"messages": [{"role": "user", "content": begun.text}], "max_tokens": 1}
    )
    plain = await prepared(stored, request, skip_lookup=True)
    used = await prepared(stored, request)
    assert len(used.token_ids_le) > len(plain.token_ids_le)
    own = [len(each.token_ids_le) // 4 - each.stable_tokens for each in (plain, used)]
    assert own == [len(PRIMER)] * 2


async def prepared(
    stored: Served, request: generation_pb2.GenerateRequest, *, skip_lookup: bool = False
) -> worker_pb2.PrepareResponse:
    request.cache.skip_lookup = skip_lookup
    process = await stored.cluster.running("worker", request.model)
    async with open_channel(process.address) as channel:
        stub = WorkerServiceStub(channel)
        return await stub.Prepare(worker_pb2.PrepareRequest(request=request))
