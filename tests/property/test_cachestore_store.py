"""Whatever is asked of a store, and whenever it crashes: it serves what was sealed, and counts."""

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bramley.cachestore import admin, keys
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.index import WAL_PAGES
from bramley.cachestore.leases import ReadLease, Wish, WriteLease
from bramley.cachestore.matching import Group, Query
from bramley.cachestore.objects import ALIGN, BLOCK, Kind, StoredObject
from bramley.cachestore.store import Store
from bramley.cachestore.wishes import Seal
from bramley.common.errors import BramleyError, InvalidRequest, NotLoaded, Overloaded
from support.core import CoreProcess
from support.simulated_disk import SimulatedDisk
from support.store import KV, chain_at, end_chain, identity, ids, payload

T = TypeVar("T")
STATES = Group("states", required=True, sliceable=False)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
PART = 100  # bytes; each takes ALIGN
RAM, DISK = 16 * ALIGN, 1 << 20
INDEX_GROWTH = WAL_PAGES * 4120  # by rows alone, before room is made for the next object
SEEDS = st.integers(0, 2)
NUMBERS = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    """A store, and a dictionary of what was sealed."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = Path(tempfile.mkdtemp(prefix="bramley-", dir=MEMORY))
        self._epochs = itertools.count(1)
        self._sealed: set[tuple[bytes, bytes]] = set()
        self._flushed: set[str] = set()
        self._writes: list[tuple[WriteLease, bytes]] = []
        self._reads: list[ReadLease] = []
        self._files = SimulatedDisk(self._mount())
        self._open()

    def _mount(self) -> Path:
        mount = self._folder / str(next(self._epochs))
        mount.mkdir()
        return mount

    def _open(self) -> None:
        budgets = {"ram_bytes": RAM, "disk_bytes": DISK}
        self._process = CoreProcess(self._files.mount, self._files, next(self._epochs), **budgets)
        self._store: Store = self._run(self._process.start())
        self._roots = [
            self._store.open_namespace(identity(salt="a"), [KV], 0.0),
            self._store.open_namespace(identity(salt="b"), [KV, STATES], 0.0),
        ]
        self._writes.clear()
        self._reads.clear()

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(20.0):
                return await step

        return self._loop.run_until_complete(in_time())

    def _call(self, call: Callable[..., T], *arguments: object) -> T:
        async def step() -> T:
            return call(*arguments)

        return self._run(step())

    def teardown(self) -> None:
        self._run(self._process.stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        shutil.rmtree(self._folder)

    # Writing

    @rule(space=st.integers(0, 1), seed=SEEDS, tokens=st.integers(1, 1100), at_once=st.booleans())
    def reserve(self, space: int, seed: int, tokens: int, at_once: bool) -> None:
        """Reserve what a prompt lacks, and mostly seal it."""
        root, whole = self._roots[space], ids(tokens, seed)
        first = self._line(root, whole) // BLOCK
        chains = keys.chain(root, whole)
        blocks = min(len(chains) // 32, first + 2)
        if blocks > first:
            own = whole[: blocks * BLOCK * 4]
            self._reserve(root, "kv", "extent", first, own)
        elif tokens % BLOCK:
            self._reserve(root, "kv", "tail", first, whole)
        if at_once and self._writes:
            self._seal(len(self._writes) - 1, "")

    @initialize()
    def begin(self) -> None:
        for space, seed in ((0, 0), (0, 1), (1, 0)):
            for _ in range(3):
                self.reserve(space, seed, 4 * BLOCK + 100, at_once=True)
        self.put_state(0, 2 * BLOCK, even=True)
        self.let_it_write(20)

    @rule(seed=SEEDS, tokens=st.integers(0, 1100), even=st.booleans())
    def put_state(self, seed: int, tokens: int, even: bool) -> None:
        whole = ids(tokens // BLOCK * BLOCK if even else tokens, seed)
        self._reserve(self._roots[1], "states", "state", len(whole) // 4 // BLOCK, whole)
        if self._writes:
            self._seal(len(self._writes) - 1, "")

    @rule(space=st.integers(0, 1), seed=SEEDS, first=st.integers(0, 4))
    def reserve_anything(self, space: int, seed: int, first: int) -> None:
        whole = ids((first + 1) * BLOCK, seed)
        self._reserve(self._roots[space], "kv", "extent", first, whole)

    def _reserve(self, root: bytes, group: str, kind: Kind, first: int, whole: bytes) -> None:
        tokens = len(whole) // 4 - first * BLOCK
        wish = Wish(
            root=root,
            kind=kind,
            group=group,
            parent=self._chain(root, whole, first),
            chain=end_chain(root, whole),
            first_token=first * BLOCK,
            tokens=tokens,
            nbytes=PART * (tokens // BLOCK if kind == "extent" else 1),
        )
        try:
            lease = self._run(self._store.reserve("one", wish))
        except BramleyError as error:
            if error.code != "RESOURCE_EXHAUSTED":
                raise
            return
        if isinstance(lease, WriteLease):
            self._writes.append((lease, whole[first * BLOCK * 4 :]))

    def _chain(self, root: bytes, tokens: bytes, blocks: int) -> bytes:
        return chain_at(root, keys.chain(root, tokens), blocks)

    @rule(number=NUMBERS, fault=st.sampled_from(["", "", "", "bytes", "generation"]))
    def seal(self, number: int, fault: str) -> None:
        if self._writes:
            self._seal(number, fault)

    def _seal(self, number: int, fault: str) -> None:
        lease, tokens = self._writes.pop(number % len(self._writes))
        wish = lease.wish
        is_extent = wish.kind == "extent"
        chains = keys.chain(wish.parent, tokens) if is_extent else wish.chain
        ends = [chains[at : at + 32] for at in range(0, len(chains), 32)]
        was_there = lease.id in self._store.leases.writes
        sums = bytes(16 * len(ends))
        if was_there:  # as the server looks before it writes
            view = self._store.tiers.memory.view(lease.run)
            for at, chain in enumerate(ends):
                view[at * ALIGN : at * ALIGN + PART] = payload(chain, PART)
            sums = b"".join(checksums_of(view, [PART] * len(ends)))
            view[PART - 1] ^= fault == "bytes"
        generation = lease.generation + (fault == "generation")
        try:
            seal = Seal(chains=chains, token_ids_le=tokens, checksums=sums, header=b"")
            self._run(self._store.seal(lease.id, generation, seal))
            answer = "ok"
        except NotLoaded as error:
            answer = error.reason
        except InvalidRequest:
            answer = "bytes"
        if fault == "generation" or not was_there:
            assert answer == "STALE_LEASE"
            if was_there:
                self._writes.append((lease, tokens))
        else:
            assert answer in {fault or "ok", "PARENT_MISSING"}
        if answer == "ok":
            self._sealed |= {(wish.root, chain) for chain in ends}

    # Reading

    def _uses(self, space: int, tokens: bytes) -> tuple[int, list[tuple[Entry, int]]]:
        root = self._roots[space]
        found = self._store.match(Query(root, keys.chain(root, tokens), tokens))
        if not found.boundaries:
            return 0, []
        best = found.boundaries[0]
        return best.tokens, [(use.entry, use.tokens) for use in best.uses]

    @rule(space=st.integers(0, 1), seed=SEEDS, blocks=st.integers(1, 5))
    def acquire(self, space: int, seed: int, blocks: int) -> None:
        self._acquire(space, ids(blocks * BLOCK, seed))

    @rule(number=NUMBERS, more=st.integers(0, 300))
    def acquire_what_is_there(self, number: int, more: int) -> None:
        entries = list(self._store.tiers.catalogue.entries.values())
        if not entries:
            return
        entry = entries[number % len(entries)]
        own = entry.object.token_ids_le
        seed = next(
            seed
            for seed in range(3)
            if ids(5 * BLOCK, seed)[entry.object.first_token * 4 :].startswith(own)
        )
        space = self._roots.index(entry.object.root)
        self._acquire(space, ids(entry.end_token + more + 1, seed))

    def _acquire(self, space: int, tokens: bytes) -> None:
        reach, uses = self._uses(space, tokens)
        root = self._roots[space]
        assert reach == self._expected(space, tokens)
        lease = None
        with suppress(Overloaded):  # or else: what is matched is there
            lease = self._run(self._store.acquire("one", root, [entry.id for entry, _ in uses]))
        if lease is None:
            return
        self._reads.append(lease)
        for entry, used in uses:
            assert entry.run is not None
            start = entry.object.first_token * 4
            own = entry.object.token_ids_le[: used * 4]
            assert tokens[start : start + len(own)] == own
            view = self._store.tiers.memory.view(entry.run)
            for at, part in enumerate(entry.object.parts):
                assert (root, part.chain) in self._sealed
                assert view[at * ALIGN : at * ALIGN + PART] == payload(part.chain, PART)

    def _objects(self, root: bytes) -> list[StoredObject]:
        entries = self._store.tiers.catalogue.entries.values()
        return [entry.object for entry in entries if entry.object.root == root]

    def _line(self, root: bytes, tokens: bytes) -> int:
        """Up to where an unbroken line of blocks, and perhaps a tail, leads."""
        mine = self._objects(root)
        blocks = {part.chain for each in mine if each.kind == "extent" for part in each.parts}
        reach = 0
        while (reach + 1) * BLOCK * 4 <= len(tokens) and (
            self._chain(root, tokens, reach + 1) in blocks
        ):
            reach += 1
        here, rest = self._chain(root, tokens, reach), tokens[reach * BLOCK * 4 :]
        after = [
            each.token_ids_le[at * BLOCK * 4 : (at + 1) * BLOCK * 4]
            for each in mine
            if each.kind != "state"
            for at, before in enumerate([each.parent, *(part.chain for part in each.parts[:-1])])
            if before == here
        ]
        # Prompts of one seed share all, of two nothing.
        shared = [
            min(len(each), len(rest)) // 4
            for each in after
            if rest.startswith(each) or each.startswith(rest)
        ]
        return reach * BLOCK + max(shared, default=0)

    def _expected(self, space: int, tokens: bytes) -> int:
        """How far a prompt can be served, found by looking at every object."""
        root = self._roots[space]
        line = min(self._line(root, tokens), len(tokens) // 4 - 1)
        if space == 0:
            return line
        states = {each.chain: each for each in self._objects(root) if each.kind == "state"}
        ends = {each.first_token + each.tokens for each in states.values()}
        usable = [at for at in ends if at <= line and end_chain(root, tokens[: at * 4]) in states]
        return max(usable, default=0)

    @rule(number=NUMBERS, is_damaged=st.integers(0, 9))
    def release(self, number: int, is_damaged: int) -> None:
        if not self._reads:
            return
        lease = self._reads.pop(number % len(self._reads))
        self._call(self._store.release, lease.id, () if is_damaged else lease.objects[:1])

    # Time and room

    @rule(number=NUMBERS)
    def evict(self, number: int) -> None:
        entries = list(self._store.tiers.catalogue.entries.values())
        if entries and number % 3 == 0:
            self._run(admin.evict(self._store, [entries[number % len(entries)]], 0.0))

    @rule(number=NUMBERS, pinned=st.booleans())
    def pin(self, number: int, pinned: bool) -> None:
        entries = list(self._store.tiers.catalogue.entries.values())
        if entries:
            entries[number % len(entries)].pinned_until_s = 60.0 if pinned else 0.0

    @rule(how=st.sampled_from(["abort", "expire", "look", "disconnect"]), number=NUMBERS)
    def give_up(self, how: str, number: int) -> None:
        if how == "abort" and self._writes:
            lease, _ = self._writes.pop(number % len(self._writes))
            self._call(self._store.abort, lease.id, lease.generation)
        elif how == "look":
            self._call(self._store.expire, 0.0)  # nothing is over yet
        elif how in {"expire", "disconnect"}:
            if how == "expire":
                self._call(self._store.expire, float("inf"))
            else:
                self._call(self._store.disconnected, "one")
            self._reads.clear()
            assert not self._store.leases.reads
            assert not self._store.leases.writes

    @rule(steps=st.integers(1, 30))
    def let_it_write(self, steps: int) -> None:
        async def wait() -> None:
            for _ in range(steps):
                await asyncio.sleep(0.0002)

        self._run(wait())

    @rule()
    def flush(self) -> None:
        answer = self._run(self._process.flush(b""))
        entries = self._store.tiers.catalogue.entries.values()
        assert answer.pending + answer.missing == sum(not e.on_disk for e in entries)
        was_refused = answer.failed or answer.refused
        assert answer.ok == (all(e.on_disk for e in entries) and not was_refused)
        if answer.ok:  # or else it has promised nothing
            self._flushed = {e.id for e in entries}

    # Crashes

    @rule(kind=st.sampled_from(["", "", "clean", "kill", "power", "drive"]), seed=NUMBERS)
    def end(self, kind: str, seed: int) -> None:
        if kind == "clean":
            self._reopen()
        elif kind:
            self._crash(kind, seed)

    def _crash(self, kind: str, seed: int) -> None:
        mount, old, tiers = self._mount(), self._files, self._store.tiers
        old.is_dead = True  # the writer's thread may be in the middle of a call

        async def end() -> None:
            await tiers.on_disk_thread(lambda: None)

        self._run(end())
        promised = set(tiers.catalogue.disk)
        chance = random.Random(seed)  # noqa: S311
        if kind == "kill":
            left = old.after_kill(mount)
        else:
            left = old.after_power_cut(mount, chance, drive_cache=kind == "drive")
        if kind == "drive":
            promised &= self._flushed
        if chance.random() < 0.5:
            for path in old.mount.glob("index.db*"):
                shutil.copy(path, mount)
        self._run(self._process.stop())
        left.has_drive_cache = True
        self._files = left
        self._open()
        assert promised <= set(self._store.tiers.catalogue.disk)
        assert not self._store.counts["corrupt"]

    def _reopen(self) -> None:
        self._run(self._process.flush(b""))
        promised = set(self._store.tiers.catalogue.disk)
        self._run(self._process.stop())
        self._open()
        assert set(self._store.tiers.catalogue.disk) == promised

    # What always holds

    @invariant()
    def counts_balance(self) -> None:
        self._store.check()
        writes = {lease.id for lease, _ in self._writes}
        assert set(self._store.leases.writes) <= writes

    @invariant()
    def budgets_hold(self) -> None:
        gauges = self._store.gauges()
        assert gauges["ram_segment_bytes"] <= RAM
        assert gauges["ssd_bytes"] <= DISK + INDEX_GROWTH + 3 * ALIGN


def test_whatever_is_asked_a_store_serves_what_was_sealed_and_its_counts_balance() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
