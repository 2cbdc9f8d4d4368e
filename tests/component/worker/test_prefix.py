"""Prefixes through a real store: what one engine saved, another starts from, or computes."""

import asyncio
import functools
from array import array
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest
from mlx import nn

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.client import FIRST_WAIT_S, WAIT_S, StoreClient
from bramley.cachestore.exchange import Snapshot
from bramley.cachestore.matching import Group
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.staging import Staged
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.worker import prefix
from bramley.worker.cache.snapshot import Span, layout, part_bytes, sliceable, stateful
from bramley.worker.engine.outputs import Saved
from bramley.worker.models.mlx_lm import layer_caches
from bramley.worker.owed import HELD_BACK, Outcome
from bramley.worker.prefix import Found, PrefixCache, StateFacts
from support.engines import InProcessEngine, request
from support.store import PATIENCE_S, identity, local_store, settings, until
from support.tiny_models import build, greedy

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 256, 600)]
BOUNDARY = 590
TOKENS = 8


class Bench:
    """A worker's engine and its prefixes."""

    def __init__(
        self, model: nn.Module, process: StoreProcess, client: StoreClient, target: str
    ) -> None:
        self.model = model
        self.target = target
        self.process = process
        self.client = client
        self.engine = InProcessEngine(model, layers=layer_caches(model))
        self.engine.run(request("first", [1, 2, 3], max_tokens=1))
        layers = self.engine.cohort.layers
        self.state = StateFacts(
            identity=identity(layout=layout(layers)),
            token_bytes=part_bytes(sliceable(layers), 1),
            state_bytes=functools.partial(part_bytes, stateful(layers)),
        )
        self.cache = PrefixCache(client, self.state)
        self.root = self.cache.root("")

    async def find(self, prompt: Sequence[int]) -> Found | None:
        ids = array("I", prompt).tobytes()
        return await self.cache.find(self.root, keys.chain(self.root, ids), ids, 0.0)

    async def answer(
        self, prompt: Sequence[int], boundary: int | None = None, session_key: str = ""
    ) -> int:
        """Answer a prompt from what is stored, and check it.

        Returns:
            How many tokens were restored. With a ``boundary``, what was saved is stored by now.
        """
        one = request("one", prompt, max_tokens=TOKENS)
        found = await self.find(prompt)
        one.restore = found.restore if found is not None else None
        if boundary is not None:
            one.saving = self.cache.saving(boundary, found, self.root, session_key)
            assert one.saving is not None
        answers = await asyncio.to_thread(self.engine.run, one)
        assert answers["one"] == greedy(self.model, list(prompt), TOKENS)
        outcome = self.engine.outcomes["one"]
        before = self.process.store.counts["sealed"]
        for saved in outcome.saved:
            self.cache.publish(saved)
        await until(lambda: self.process.store.counts["sealed"] == before + len(outcome.saved))
        return outcome.restored

    def entries(self, group: str) -> list[Entry]:
        catalogue = self.process.store.tiers.catalogue
        return [entry for entry in catalogue.entries.values() if entry.object.group == group]

    async def close(self) -> None:
        await self.cache.close()
        self.engine.close()


sliding = pytest.mark.parametrize("model", ["sliding"], indirect=True)


@pytest.fixture(scope="module", params=["full", "sliding"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param, seed=5)


@pytest.fixture
async def benches(model: nn.Module) -> AsyncGenerator[Sequence[Bench]]:
    """Two workers of one store."""
    made: list[Bench] = []
    async with local_store(settings(disk_bytes=0)) as (process, target):
        for name in ("one", "two"):
            client = StoreClient.connect(target, name, wait_s=5.0)
            async with asyncio.timeout(PATIENCE_S):
                await client.linked()
            made.append(Bench(model, process, client, target))
        yield made
        for bench in made:
            await bench.close()
        process.store.check()


def has_state(bench: Bench) -> bool:
    return bench.state.has_state


async def test_a_prefix_is_one_group_or_two(benches: Sequence[Bench]) -> None:
    bench = benches[0]
    kv, state = (
        Group("kv", required=True, sliceable=True),
        Group("state", required=True, sliceable=False),
    )
    assert bench.state.groups == ([kv, state] if has_state(bench) else [kv])
    assert await bench.answer(PROMPT, BOUNDARY) == 0
    kinds = sorted((entry.object.group, entry.object.kind) for entry in bench.entries("kv"))
    assert kinds == [("kv", "extent"), ("kv", "tail")]
    assert [(one.object.kind, one.end_token) for one in bench.entries("state")] == (
        [("state", BOUNDARY)] if has_state(bench) else []
    )


@pytest.mark.parametrize("boundary", [512, 590])
async def test_b016_one_worker_starts_where_another_s_prompt_was_saved(
    benches: Sequence[Bench], boundary: int
) -> None:
    one, two = benches
    assert await one.answer(PROMPT, boundary) == 0
    following = [*PROMPT[:boundary], 1, 2, 3]
    for bench in (two, one):
        assert await bench.answer(following) == boundary


async def test_an_edited_prompt_starts_from_the_deepest_place_that_can_be_used(
    benches: Sequence[Bench],
) -> None:
    one, two = benches
    await one.answer(PROMPT[:300], 300)
    await one.answer(PROMPT, BOUNDARY)
    edited = [*PROMPT[:500], 1, 2, 3]
    assert await two.answer(edited) == (299 if has_state(two) else 500)
    assert await two.answer(PROMPT) == BOUNDARY
    assert await two.answer(PROMPT[:200]) == (0 if has_state(two) else 199)


@pytest.mark.parametrize(
    ("model", "group"),
    [("full", "kv"), ("sliding", "kv"), ("sliding", "state")],
    indirect=["model"],
)
async def test_a_damaged_part_is_a_miss_and_is_not_offered_again(
    benches: Sequence[Bench], group: str
) -> None:
    one, two = benches
    await one.answer(PROMPT[:300], 300)
    await one.answer(PROMPT, BOUNDARY)
    entry = max(one.entries(group), key=lambda entry: entry.end_token)
    assert entry.end_token == BOUNDARY
    assert entry.run is not None
    one.process.store.tiers.memory.view(entry.run)[5] ^= 1
    # Of full attention the blocks before it will do; a state is for its own place alone.
    first = await two.answer(PROMPT)
    assert first == (0 if has_state(two) else 512)
    await until(lambda: one.process.store.counts["corrupt"] == 1)
    assert await two.answer(PROMPT) == (299 if has_state(two) else 512)


@sliding
async def test_a_prefix_that_lost_its_state_starts_from_the_one_before(
    benches: Sequence[Bench],
) -> None:
    one, two = benches
    await one.answer(PROMPT[:300], 300)
    await one.answer(PROMPT, BOUNDARY)
    store = one.process.store
    deepest = max(one.entries("state"), key=lambda entry: entry.end_token)
    store.tiers.discard(deepest, "evicted_clean")
    assert await two.answer(PROMPT) == 299


async def test_what_cannot_be_staged_whole_is_not_saved(benches: Sequence[Bench]) -> None:
    bench = benches[0]
    large = StateFacts(
        identity=bench.state.identity,
        token_bytes=bench.state.token_bytes,
        state_bytes=lambda tokens: tokens << 20,
    )
    cache = PrefixCache(bench.client, large)
    assert cache.saving(4, None, b"") is not None
    assert cache.saving(9, None, b"") is None
    await cache.close()


async def test_what_was_said_in_a_session_is_recalled_by_another_worker(
    benches: Sequence[Bench],
) -> None:
    one, two = benches
    await one.answer(PROMPT, BOUNDARY, "s")
    following = [*PROMPT[:BOUNDARY], 1, 2, 3, *PROMPT[:500]]
    await one.answer(following, len(following) - 1, "s")
    await one.answer([9, *PROMPT], BOUNDARY, "t")
    recalled = await two.cache.recall(two.root, "s")
    assert recalled is not None
    assert [list(array("I", tokens)) for tokens in recalled] == [following[:-1]]
    assert await two.cache.recall(two.root, "nobody") == []


async def test_where_no_block_has_them_a_state_s_header_has_its_tokens(
    benches: Sequence[Bench],
) -> None:
    one, two = benches
    alone = StateFacts(
        identity=identity(layout="alone"), token_bytes=0, state_bytes=lambda tokens: 1000
    )
    mine, other = (PrefixCache(bench.client, alone) for bench in (one, two))
    root, tokens = mine.root(""), array("I", PROMPT).tobytes()
    assert await mine.recall(root, "s") == []  # it is open by now
    staged = one.client.stage(1 << 14)
    assert staged is not None
    saving = mine.saving(600, None, root, "s")
    assert saving is not None
    handed = saving.account.hand_over(is_state=True, first=512, stop=600, blocks=1)
    mine.publish(Saved("r", Span("state", 512, (88,)), staged, tokens, saving, handed))
    await mine.settled()
    assert await other.recall(root, "s") == [tokens]
    longer = tokens + bytes(4)
    found = await other.find(root, keys.chain(root, longer), longer, 0.0)
    assert found is not None
    assert found.restore.tokens == 600
    found.restore.release()
    await mine.close()
    await other.close()


class Settled:
    """What a cache told of spans that were handed over."""

    def __init__(self, bench: Bench, state: StateFacts) -> None:
        self.outcomes: list[Outcome] = []
        self.cache = PrefixCache(bench.client, state, settled=self._take)
        self._client = bench.client
        saving = self.cache.saving(600, None, self.cache.root(""))
        assert saving is not None
        self.saving = saving

    def _take(self, saved: Saved, outcome: Outcome) -> None:
        assert saved.saving is self.saving
        self.outcomes.append(outcome)

    async def publish(self, *spans: Span) -> list[Outcome]:
        """Hand spans of the prompt over, together: what came of each."""
        self.outcomes.clear()
        for span in spans:
            staged = self._client.stage(len(span.parts) << 17)
            assert staged is not None
            handed = self.saving.account.hand_over(
                is_state=False, first=span.first, stop=span.stop, blocks=len(span.parts)
            )
            tokens = array("I", PROMPT[: span.stop]).tobytes()
            self.cache.publish(Saved("", span, staged, tokens, self.saving, handed))
        await until(lambda: len(self.outcomes) == len(spans))
        return self.outcomes


BLOCKS = [Span("extent", first, (256,)) for first in (0, 256, 512)]


async def test_a_refusal_comes_back_with_what_is_there_and_what_follows_is_not_asked_for(
    benches: Sequence[Bench],
) -> None:
    facts = StateFacts(
        identity=identity(layout="settled"), token_bytes=500, state_bytes=lambda _: 0
    )
    settled = Settled(benches[0], facts)
    assert await settled.cache.recall(settled.saving.root, "s") == []  # it is open by now
    tail = Span("tail", 512, (88,))
    first, second, _ = BLOCKS
    assert await settled.publish(second, tail) == [
        Outcome("parent_missing", kept=0),
        Outcome(HELD_BACK),
    ]
    settled.saving.account.attempt += 1
    assert await settled.publish(first) == [Outcome()]
    assert await settled.publish(tail) == [Outcome("parent_missing", kept=256)]
    settled.saving.account.attempt += 1
    assert await settled.publish(second, tail, second) == [Outcome()] * 3
    counts = benches[0].process.store.counts
    assert counts["refused_parent_missing"] == 2
    await settled.cache.close()


async def test_what_the_store_finds_fault_with_is_not_tried_again(
    benches: Sequence[Bench],
) -> None:
    facts = StateFacts(identity=identity(layout="faulty"), token_bytes=500, state_bytes=lambda _: 0)
    settled = Settled(benches[0], facts)
    assert await settled.cache.recall(settled.saving.root, "s") == []
    assert await settled.publish(Span("extent", 100, (256,))) == [Outcome("rejected")]
    await settled.cache.close()


async def test_a_store_that_went_is_told_as_such(benches: Sequence[Bench]) -> None:
    facts = StateFacts(identity=identity(layout="went"), token_bytes=500, state_bytes=lambda _: 0)
    settled = Settled(benches[0], facts)
    link = benches[0].client.link
    assert link is not None
    await link.channel.close()
    assert await settled.publish(BLOCKS[0]) == [Outcome("store_lost")]
    assert settled.cache.saving(600, None, b"") is not None  # it will be back
    await settled.cache.close()


async def test_a_call_that_is_cancelled_does_not_end_the_saving_of_others(
    benches: Sequence[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = StateFacts(identity=identity(layout="cut"), token_bytes=500, state_bytes=lambda _: 0)
    settled = Settled(benches[0], facts)
    assert await settled.cache.recall(settled.saving.root, "s") == []  # it is open by now

    async def publish(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(benches[0].client, "publish", publish)
        assert await settled.publish(BLOCKS[0]) == [Outcome("rejected")]
    assert await settled.publish(BLOCKS[0]) == [Outcome()]
    await settled.cache.close()


async def test_a_first_lookup_waits_longer_and_one_that_is_late_is_counted(
    benches: Sequence[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = StoreClient.connect(benches[0].target, "hasty")
    async with asyncio.timeout(PATIENCE_S):
        await client.linked()
    root = await client.open_namespace(benches[0].state.identity, benches[0].state.groups)
    assert client.link is not None
    real, waits = client.link.stub.Match, list[float]()

    async def match(asked: pb.MatchRequest, *, timeout: float) -> pb.MatchResponse:  # noqa: ASYNC109 gRPC's
        waits.append(timeout)
        if len(waits) > 2:
            raise TimeoutError
        return await real(asked, timeout=PATIENCE_S)

    monkeypatch.setattr(client.link.stub, "Match", match)
    for _ in range(3):
        assert await client.match(root, b"", bytes(40)) is None
    assert waits == [FIRST_WAIT_S, WAIT_S, WAIT_S]
    assert client.lookups == {"miss": 2, "late": 1}
    await client.close()
    assert await client.match(root, b"", bytes(40)) is None
    assert client.lookups["away"] == 1


async def test_the_salts_asked_for_longest_ago_are_forgotten(
    benches: Sequence[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "ROOTS_MAX", 3)
    client = benches[0].client
    forgotten: list[bytes] = []
    cache = PrefixCache(client, benches[0].state, forgotten.append)
    roots = {salt: cache.root(salt) for salt in ("", "a", "b")}
    assert not cache.has_forgotten_roots
    cache.root("a")
    roots["c"] = cache.root("c")
    assert forgotten == [roots["b"]]
    roots["d"] = cache.root("d")
    assert forgotten == [roots["b"], roots["a"]]
    assert cache.has_forgotten_roots
    assert set(cache.roots) == {roots[salt] for salt in ("", "c", "d")}
    assert await cache.recall(roots["d"], "s") == []  # it is open by now
    assert cache.root("a") == roots["a"]
    assert await cache.recall(roots["a"], "s") == []
    assert {roots["a"], roots["d"], roots[""]} == client.namespaces
    await cache.close()


async def test_the_store_is_told_where_prompts_end_and_how_fast_they_are_computed(
    benches: Sequence[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches[0]
    told: set[tuple[int, bool]] = set()
    publish = bench.client.publish

    async def noted(staged: Staged, snapshot: Snapshot) -> object:
        told.add((snapshot.first_token + snapshot.tokens, snapshot.prompt_boundary))
        return await publish(staged, snapshot)

    monkeypatch.setattr(bench.client, "publish", noted)
    await bench.answer(PROMPT, BOUNDARY)
    await until(lambda: (BOUNDARY, True) in told)
    assert {end for end, is_prompt in told if is_prompt} == {BOUNDARY}
    assert len(told) > 1
    namespaces = bench.process.store.namespaces
    ids = array("I", PROMPT).tobytes()
    for rate, known in ((500.0, 500.0), (600.0, 500.0), (2000.0, 2000.0)):
        found = await bench.cache.find(bench.root, keys.chain(bench.root, ids), ids, rate)
        if found is not None:
            found.restore.release()
        await until(lambda known=known: namespaces[bench.root].prefill_rate == known)
