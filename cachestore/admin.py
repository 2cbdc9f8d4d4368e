"""What an administrator asks of a store: why a prompt hits or not, pins, eviction, proof."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.keys import HASH_BYTES, Identity
from bramley.cachestore.matching import Query
from bramley.cachestore.objects import BLOCK
from bramley.cachestore.store import Store
from bramley.cachestore.wire import tier_bytes


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a prompt matches as far as it does.

    Attributes:
        ssd_tokens: of the matched ones, as many as is the disk's share of their bytes.
        first_differing_block: the first one that is not there.
        mismatched_fields: of the nearest known namespace's identity.
    """

    words: str
    matched_tokens: int = 0
    ssd_tokens: int = 0
    first_differing_block: int = 0
    mismatched_fields: Sequence[str] = ()
    missing_groups: Sequence[str] = ()


def explain(store: Store, identity: Identity, chains: bytes, token_ids_le: bytes) -> Explanation:
    """Say why a prompt hits or misses."""
    root = keys.root(identity)
    if root not in store.namespaces:
        return _explain_namespace(store, identity)
    found = store.find(Query(root, chains, token_ids_le))
    tokens = found.boundaries[0].tokens if found.boundaries else 0
    ram_bytes, ssd_bytes = tier_bytes(found.boundaries[0].uses if found.boundaries else ())
    block, blocks = tokens // BLOCK, len(chains) // HASH_BYTES
    words = f"{tokens} of {len(token_ids_le) // 4} tokens are stored"
    if found.missing_groups:
        words += f"; without state of {', '.join(found.missing_groups)}"
    if block < blocks:
        words += f"; block {block} is the first that differs or was never stored"
    return Explanation(
        words=words,
        matched_tokens=tokens,
        ssd_tokens=round(tokens * ssd_bytes / max(ram_bytes + ssd_bytes, 1)),
        first_differing_block=block,
        missing_groups=found.missing_groups,
    )


def _explain_namespace(store: Store, identity: Identity) -> Explanation:
    known = [namespace.identity for namespace in store.namespaces.values()]
    if store.tiers.disk is not None:
        known += store.tiers.disk.namespaces().values()
    if not known:
        return Explanation(words="nothing was ever stored")
    fields = min((keys.differing_fields(identity, other) for other in known), key=len)
    if not fields:
        return Explanation(words="the namespace is on disk, and no worker has opened it")
    words = f"no such namespace; the nearest known one differs in {', '.join(fields)}"
    return Explanation(words=words, mismatched_fields=fields)


def pin(entries: Iterable[Entry], until_s: float) -> int:
    """Keep objects from being evicted until then, on the monotonic clock: how many."""
    count = 0
    for entry in entries:
        entry.pinned_until_s = until_s
        count += 1
    return count


def known(store: Store, object_ids: Iterable[str]) -> list[Entry]:
    """Find objects; those that are not there are left out."""
    entries = store.tiers.catalogue.entries
    return [entries[object_id] for object_id in object_ids if object_id in entries]


def evict(store: Store, entries: Sequence[Entry]) -> tuple[int, int]:
    """Remove objects that nobody holds and nothing but each other follows from.

    Returns:
        How many went, and their bytes.
    """
    count = size = 0
    deepest_first = sorted(entries, key=lambda entry: entry.end_token, reverse=True)
    for entry in sorted(deepest_first, key=lambda entry: entry.object.kind == "extent"):
        is_held = entry.holds or store.leases.is_pinned(entry.id)
        if is_held or not store.tiers.catalogue.is_leaf(entry):
            continue
        store.tiers.discard(entry, "evicted_clean")
        store.counts["evicted_by_hand"] += 1
        count, size = count + 1, size + entry.object.payload_bytes
    return count, size


async def verify(store: Store, entries: Iterable[Entry]) -> list[str]:
    """Prove the bytes of objects, wherever they are; damaged ones are quarantined.

    Returns:
        The ids of damaged objects.
    """
    damaged: list[str] = []
    for entry in entries:
        lease = store.leases.read("", [entry.id], float("inf"))
        try:
            if not await _is_whole(store, entry):
                damaged.append(entry.id)
        finally:
            store.release(lease.id)
    return damaged


async def _is_whole(store: Store, entry: Entry) -> bool:
    if entry.on_disk and not await store.tiers.prove_file(entry):
        return False
    if entry.run is None:
        return True
    parts = entry.object.parts
    payload = store.tiers.memory.view(entry.run)
    sizes = [part.nbytes for part in parts]
    found = await asyncio.to_thread(partial(checksums_of, payload, sizes))
    if found == [part.checksum for part in parts]:
        return True
    if entry.id in store.tiers.catalogue.entries:
        store.tiers.quarantine(entry)
    return False
