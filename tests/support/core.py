"""A store without its server, on a disk in memory: small, quick, and crashed at will."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bramley.cachestore import keys
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.files import Files
from bramley.cachestore.leases import Wish, WriteLease
from bramley.cachestore.matching import Query
from bramley.cachestore.objects import ALIGN, BLOCK
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.store import Store
from bramley.cachestore.wishes import Seal
from bramley.common.errors import BramleyError, Overloaded, UnknownResource
from support.store import chain_at, payload, settings

PART = 100  # bytes of a block; each takes ALIGN


class CoreProcess(StoreProcess):
    """Opens its tiers and runs what writes to the disk; nobody can connect.

    Args:
        mount: of the disk.
        files: to reach it by.
        epoch: of this incarnation.
        budgets: of the settings.
    """

    def __init__(self, mount: Path, files: Files, epoch: int, **budgets: int) -> None:
        chosen = settings(folder=str(mount), **budgets)
        super().__init__(chosen, f"unix:{mount}.sock", epoch, files=files)
        self._stack: Any = None

    @asynccontextmanager
    async def _running(self, store: Store, data: object) -> AsyncGenerator[None]:
        running = [asyncio.create_task(store.spiller.run())] if store.spiller is not None else []
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def start(self) -> Store:
        """Open it."""
        self._stack = self.serve()
        await self._stack.__aenter__()
        return self.store

    async def stop(self) -> None:
        """Close it; what waits for the disk is given up."""
        await self._stack.__aexit__(None, None, None)


async def put(store: Store, root: bytes, tokens: bytes, first: int = 0) -> str:
    """Store the whole blocks of a prompt from the ``first`` on: "ok", or why not."""
    chains = keys.chain(root, tokens)
    blocks = len(chains) // keys.HASH_BYTES
    wish = Wish(
        root=root,
        kind="extent",
        group="kv",
        parent=chain_at(root, chains, first),
        chain=chain_at(root, chains, blocks),
        first_token=first * BLOCK,
        tokens=(blocks - first) * BLOCK,
        nbytes=PART * (blocks - first),
    )
    try:
        lease = await store.reserve("one", wish)
        if not isinstance(lease, WriteLease):
            return "ok"
        view, own = store.tiers.memory.view(lease.run), chains[first * keys.HASH_BYTES :]
        for at in range(blocks - first):
            chain = own[at * keys.HASH_BYTES : (at + 1) * keys.HASH_BYTES]
            view[at * ALIGN : at * ALIGN + PART] = payload(chain, PART)
        sums = b"".join(checksums_of(view, [PART] * (blocks - first)))
        ids = tokens[first * BLOCK * 4 : blocks * BLOCK * 4]
        seal = Seal(chains=own, token_ids_le=ids, checksums=sums, header=b"")
        await store.seal(lease.id, lease.generation, seal)
    except BramleyError as error:
        return error.reason
    return "ok"


async def read(store: Store, root: bytes, tokens: bytes) -> int:
    """Read what is there of a prompt, and check each byte: tokens restored."""
    found = store.match(Query(root, keys.chain(root, tokens), tokens))
    if not found.boundaries:
        return 0
    uses = found.boundaries[0].uses
    try:
        lease = await store.acquire("one", root, [use.entry.id for use in uses])
    except (UnknownResource, Overloaded):
        return 0
    for use in uses:
        stored, run = use.entry.object, use.entry.run
        own = stored.token_ids_le[: use.tokens * 4]
        assert tokens[stored.first_token * 4 :][: len(own)] == own, "wrong tokens"
        assert run is not None
        view = store.tiers.memory.view(run)
        for at, part in enumerate(stored.parts):
            right = payload(part.chain, PART)
            assert view[at * ALIGN : at * ALIGN + PART] == right, "wrong bytes"
    store.release(lease.id)
    return found.boundaries[0].tokens


def drop_copies(store: Store) -> None:
    """Leave in RAM only what is not on disk."""
    for entry in list(store.tiers.catalogue.ram.values()):
        if entry.on_disk and not entry.holds and not store.leases.is_pinned(entry.id):
            store.tiers.drop_from_ram(entry)
