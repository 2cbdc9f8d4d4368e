"""A cache store, in this process or its own, and what a worker would put in and take out."""

import array
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bramley.cachestore import keys
from bramley.cachestore.client import StoreClient
from bramley.cachestore.exchange import Match, Published, Refusal, Snapshot
from bramley.cachestore.files import Files
from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group
from bramley.cachestore.objects import BLOCK, padded
from bramley.cachestore.process import StoreProcess, publish
from bramley.cachestore.segments import NATIVE, SegmentKind
from bramley.cachestore.settings import StoreSettings
from bramley.common.child import ChildContext

PATIENCE_S = 20.0
KV = Group("kv", required=True, sliceable=True)
PART_BYTES = 20_000  # not a multiple of ALIGN


def settings(**values: object) -> StoreSettings:
    """Settings of a small store."""
    small = {"ram_bytes": 64 << 20, "staging_bytes": 8 << 20, "disk_bytes": 1 << 30}
    small |= {"keep_free_bytes": 1, "scrub_bytes_s": 0}
    return msgspec.convert({**small, **values}, StoreSettings)


def identity(**fields: object) -> Identity:
    """An identity, different wherever the fields are."""
    usual = {
        "weights_digest": "w",
        "config_digest": "c",
        "tokenizer_digest": "t",
        "kv_scheme": ("full",),
        "layout": "l",
        "numerics_epoch": "n",
    }
    return msgspec.convert({**usual, **fields}, Identity)


def ids(count: int, seed: int = 0) -> bytes:
    """Token ids of a prompt; prompts of one seed are prefixes of each other."""
    block = array.array("I")
    for at in range(count):
        block.append((seed * 1_000_003 + at * 7919) % 50_000)
    return block.tobytes()


def payload(chain: bytes, nbytes: int) -> bytes:
    """The bytes that stand for the state at a chain hash."""
    return hashlib.shake_128(chain).digest(64) * (nbytes // 64) + bytes(nbytes % 64)


def until(condition: Callable[[], bool]) -> Awaitable[None]:
    """Wait until a condition of this process holds."""

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    return wait()


class Worker:
    """A client, and the namespace that it works in."""

    def __init__(self, client: StoreClient, root: bytes) -> None:
        self.client = client
        self.root = root

    async def put(
        self,
        tokens: bytes,
        *,
        first_block: int = 0,
        group: str = "kv",
        part_bytes: int = PART_BYTES,
        session_key: str = "",
    ) -> list[Published | Refusal]:
        """Publish the whole blocks from ``first_block`` on as one extent, and the tail."""
        chains = keys.chain(self.root, tokens)
        blocks = len(chains) // keys.HASH_BYTES
        start = first_block * BLOCK * 4
        whole = tokens[start : blocks * BLOCK * 4]
        answers: list[Published | Refusal] = []
        if whole:
            snapshot = Snapshot(
                root=self.root,
                kind="extent",
                group=group,
                parent=chain_at(self.root, chains, first_block),
                first_token=first_block * BLOCK,
                token_ids_le=whole,
                part_bytes=part_bytes,
                header=b"header",
                session_key=session_key,
            )
            answers.append(await self.publish(snapshot))
        if tail := tokens[blocks * BLOCK * 4 :]:
            snapshot = Snapshot(
                root=self.root,
                kind="tail",
                group=group,
                parent=chain_at(self.root, chains, blocks),
                first_token=blocks * BLOCK,
                token_ids_le=tail,
                part_bytes=part_bytes,
                header=b"header",
                session_key=session_key,
            )
            answers.append(await self.publish(snapshot))
        return answers

    async def put_state(
        self, tokens: bytes, group: str, *, session_key: str = ""
    ) -> Published | Refusal:
        """Publish a state after all tokens."""
        chains = keys.chain(self.root, tokens)
        blocks = len(chains) // keys.HASH_BYTES
        return await self.publish(
            Snapshot(
                root=self.root,
                kind="state",
                group=group,
                parent=chain_at(self.root, chains, blocks),
                first_token=blocks * BLOCK,
                token_ids_le=tokens[blocks * BLOCK * 4 :],
                part_bytes=PART_BYTES,
                header=b"state",
                session_key=session_key,
            )
        )

    async def publish(self, snapshot: Snapshot) -> Published | Refusal:
        """Fill staging with the bytes that stand for the snapshot, and publish it."""
        sizes = snapshot.sizes
        staged = self.client.stage(sum(padded(size) for size in sizes))
        assert staged is not None
        start = 0
        for at, size in enumerate(sizes):
            chain = snapshot.chains[at * keys.HASH_BYTES : (at + 1) * keys.HASH_BYTES]
            staged.view[start : start + size] = payload(chain, size)
            start += padded(size)
        return await self.client.publish(staged, snapshot)

    async def match(self, tokens: bytes) -> Match | None:
        """Ask what the store has of a prompt."""
        return await self.client.match(
            self.root, keys.chain(self.root, tokens), tokens, timeout_s=5.0
        )

    async def matched(self, tokens: bytes) -> int:
        """Ask how many of its tokens the store has."""
        match = await self.match(tokens)
        return match.boundaries[0].tokens if match is not None else 0

    async def read(self, tokens: bytes) -> int:
        """Restore the deepest boundary, and check each byte: tokens restored."""
        match = await self.match(tokens)
        if match is None:
            return 0
        lease = await self.client.acquire(match, timeout_s=5.0)
        if lease is None:
            return 0
        with lease:
            at = {part.group: 0 for part in lease.parts}
            for part in lease.parts:
                assert lease.verify(part)
                if not part.is_state:
                    assert part.first_token == at[part.group]
                at[part.group] = part.first_token + part.tokens
                own = tokens[: (part.first_token + part.tokens) * 4]
                if part.tokens == part.stored_tokens:
                    chain = end_chain(self.root, own)
                    assert bytes(part.payload) == payload(chain, len(part.payload))
            assert set(at.values()) == {match.boundaries[0].tokens}
            assert lease.is_held
        return match.boundaries[0].tokens

    async def idle(self) -> dict[str, int]:
        """Wait until no lease is held: the store's counts."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                stats = await self.client.stats()
                if stats is not None and not (
                    stats.gauges["read_leases"] or stats.gauges["write_leases"]
                ):
                    return {**stats.counters, **stats.gauges}
                await asyncio.sleep(0.01)


def chain_at(root: bytes, chains: bytes, blocks: int) -> bytes:
    """The hash after that many whole blocks."""
    return chains[(blocks - 1) * keys.HASH_BYTES : blocks * keys.HASH_BYTES] if blocks else root


def end_chain(root: bytes, tokens: bytes) -> bytes:
    """The hash after all tokens."""
    chains = keys.chain(root, tokens)
    blocks = len(chains) // keys.HASH_BYTES
    parent = chain_at(root, chains, blocks)
    tail = tokens[blocks * BLOCK * 4 :]
    return keys.tail_hash(parent, tail) if tail else parent


@asynccontextmanager
async def worker(
    target: str,
    *,
    groups: Sequence[Group] = (KV,),
    inline: bool = False,
    **fields: object,
) -> AsyncGenerator[Worker]:
    """Connect a worker for the length of the block."""
    client = StoreClient.connect(target, "test", inline=inline, wait_s=5.0)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client.linked()
        yield Worker(client, await client.open_namespace(identity(**fields), groups))
    finally:
        await client.close()


@asynccontextmanager
async def local_store(
    chosen: StoreSettings,
    kind: SegmentKind = NATIVE,
    epoch: int = 1,
    files: Files | None = None,
) -> AsyncGenerator[tuple[StoreProcess, str]]:
    """Run a store in this process: it, and its target."""
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        target = f"unix:{folder}/store-{epoch}.sock"
        process = StoreProcess(chosen, target, epoch, kind, files)
        async with process.serve():
            publish(process.addresses)
            yield process, f"unix:{folder}/store.sock"


class StoreChild:
    """A store in a process of its own, which can be killed and started again.

    Attributes:
        target: that stays over restarts.
        process: the last one.
    """

    def __init__(self, folder: Path, run_dir: str) -> None:
        self.target = f"unix:{run_dir}/store.sock"
        self.process: asyncio.subprocess.Process
        self.log = folder / "store.log"
        self._folder = folder
        self._run_dir = run_dir
        self._epoch = 0

    async def start(self, chosen: StoreSettings) -> None:
        """Start it, and wait until it serves."""
        self._epoch += 1
        ready, told = os.pipe()
        owner, self._held = os.pipe()
        context = ChildContext(
            role="store",
            name="store",
            epoch=self._epoch,
            run_dir=self._run_dir,
            lease_file=str(self._folder / "lease.json"),
            ready_fd=told,
            owner_fd=owner,
        )
        file = self._folder / "settings.json"
        file.write_bytes(msgspec.json.encode(chosen))
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "bramley.cachestore"),
                *("--child", context.argument(), "--settings", str(file)),
                stdout=log,
                stderr=log,
                pass_fds=(told, owner),
            )
        os.close(told)
        os.close(owner)
        line = await asyncio.to_thread(os.read, ready, 4096)
        os.close(ready)
        assert line, f"not ready\n{self.log.read_text()}"
        assert set(json.loads(line)) == {"socket", "data"}

    async def ended(self) -> int:
        """Wait for its end: the exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def kill(self) -> None:
        """End it with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.ended()
        os.close(self._held)

    async def stop(self) -> None:
        """End it in good order."""
        self.process.terminate()
        code = await self.ended()
        os.close(self._held)
        assert code == 0, self.log.read_text()
        assert "ERROR" not in self.log.read_text(), self.log.read_text()


@asynccontextmanager
async def store_child(folder: Path) -> AsyncGenerator[StoreChild]:
    """Make a store's process for the length of the block; the test starts it."""
    with tempfile.TemporaryDirectory(prefix="bramley-") as run_dir:
        child = StoreChild(folder, run_dir)
        try:
            yield child
        finally:
            if child.process.returncode is None:
                await child.kill()
