"""What an administrator asks of a store: why a prompt hits or not, pins, eviction, proof."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.keys import HASH_BYTES, Identity
from bramley.cachestore.matching import Query
from bramley.cachestore.objects import BLOCK
from bramley.cachestore.store import Store
from bramley.cachestore.wire import tier_bytes
from bramley.common.errors import InvalidRequest, Overloaded

PIN_S_MAX = 86_400.0
_AT_ONCE = 64  # objects looked at between two turns of the event loop
PIN_SHARE = 0.25  # of the RAM tier: what is pinned may all be there


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


@dataclass(frozen=True)
class Pinned:
    """How much is pinned.

    Attributes:
        count: of the objects that were asked for.
        size: of all that are pinned.
        limit: of that.
    """

    count: int
    size: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Evicted:
    """How many objects went, and how many stayed because of what."""

    evicted: int = 0
    size: int = 0
    held: int = 0
    pinned: int = 0
    followed: int = 0


@dataclass(frozen=True)
class KnownNamespace:
    """A namespace, and what there is of it."""

    root: bytes
    identity: Identity | None
    objects: int
    size: int


@dataclass(kw_only=True)
class Proved:
    """What was found of objects that were to be proved.

    Attributes:
        objects: that were looked at.
        size: of those.
        damaged: ids of those that did not stand it.
        unreadable: ids of those that the disk did not give this time, and that are kept.
        missing: ids of those whose file has gone.
        last: to go on after; empty once all were looked at.
    """

    objects: int = 0
    size: int = 0
    damaged: list[str] = field(default_factory=list[str])
    unreadable: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    last: str = ""


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


def pin(store: Store, entries: Sequence[Entry], now_s: float, seconds: float) -> Pinned:
    """Keep objects from being evicted for a while.

    Returns:
        How much is pinned now.

    Raises:
        InvalidRequest: for too long.
        Overloaded: together with what is pinned already they are too many; none is pinned then.
    """
    if not 0 < seconds <= PIN_S_MAX:
        raise InvalidRequest("ttl", f"a pin lasts {PIN_S_MAX:.0f} s at most, and more than 0")
    everything = store.tiers.catalogue.entries.values()
    wanted = {one.id for one in entries}
    pinned = [one for one in everything if one.id in wanted or one.pinned_until_s > now_s]
    size = sum(one.object.payload_bytes for one in pinned)
    limit = int(store.tiers.memory.arena.budget * PIN_SHARE)
    if size > limit:
        raise Overloaded(
            f"{size} bytes would be pinned, and {limit} may be: {PIN_SHARE:.0%} of the RAM tier",
            reason="PINS_FULL",
            facts={"bytes": size, "limit": limit},
        )
    for entry in entries:
        entry.pinned_until_s = now_s + seconds
    return Pinned(len(entries), size, limit)


def unpin(entries: Sequence[Entry]) -> int:
    """Let objects be evicted again: how many were given."""
    for entry in entries:
        entry.pinned_until_s = 0.0
    return len(entries)


async def give_way(number: int) -> None:
    """Let others have a turn of the event loop; to be called with the number of each step."""
    if number % _AT_ONCE == _AT_ONCE - 1:
        await asyncio.sleep(0)


async def listed(
    store: Store, *, root: bytes, session_key: str, after: str, begins: str, limit: int
) -> list[Entry]:
    """Find objects in the order of their ids; what is empty leaves none out.

    Args:
        store: whose they are.
        root: of their namespace.
        session_key: that they were stored under.
        after: an id; those up to it are left out.
        begins: what their ids begin with.
        limit: of how many.

    Returns:
        The first ones.
    """
    found: list[Entry] = []
    for number, entry in enumerate(store.tiers.catalogue.in_order(after, begins)):
        if root in {b"", entry.object.root} and session_key in {"", entry.object.session_key}:
            found.append(entry)
        if len(found) == limit:
            break
        await give_way(number)
    return found


def unique_characters(ids: Sequence[str], own: str) -> int:
    """How many leading characters tell an id from all others.

    Args:
        ids: all, sorted.
        own: one of them, or one that is there no more.

    Returns:
        All of its characters at most.
    """
    at = bisect_left(ids, own)
    beside = [one for one in ids[max(at - 1, 0) : at + 2] if one != own]
    count = 1
    while count < len(own) and any(other.startswith(own[:count]) for other in beside):
        count += 1
    return count


def known(store: Store, object_ids: Iterable[str]) -> list[Entry]:
    """Find objects; those that are not there are left out."""
    entries = store.tiers.catalogue.entries
    return [entries[object_id] for object_id in object_ids if object_id in entries]


async def evict(store: Store, entries: Sequence[Entry], now_s: float) -> Evicted:
    """Remove objects that nobody holds, no pin keeps, and nothing but each other follows from.

    Returns:
        What went, and why the rest did not.
    """
    done: Counter[str] = Counter()
    deepest_first = sorted(entries, key=lambda entry: entry.end_token, reverse=True)
    in_order = sorted(deepest_first, key=lambda entry: entry.object.kind == "extent")
    for number, entry in enumerate(in_order):
        await give_way(number)
        if entry.id not in store.tiers.catalogue.entries:
            continue  # it went meanwhile
        if store.tiers.is_needed(entry):
            done["held"] += 1
        elif entry.pinned_until_s > now_s:
            done["pinned"] += 1
        elif not store.tiers.catalogue.is_leaf(entry):
            done["followed"] += 1
        else:
            store.tiers.discard(entry, "evicted_clean")
            store.counts["evicted_by_hand"] += 1
            done["evicted"] += 1
            done["size"] += entry.object.payload_bytes
    return Evicted(**done)


def namespaces(store: Store) -> list[KnownNamespace]:
    """Say what there is of each namespace, opened or only stored."""
    disk = store.tiers.disk
    identities: dict[bytes, Identity] = dict(disk.namespaces()) if disk is not None else {}
    identities |= {root: one.identity for root, one in store.namespaces.items()}
    objects, size = Counter[bytes](), Counter[bytes]()
    for entry in store.tiers.catalogue.entries.values():
        objects[entry.object.root] += 1
        size[entry.object.root] += entry.object.payload_bytes
    return [
        KnownNamespace(root, identities.get(root), objects[root], size[root])
        for root in sorted(identities.keys() | objects.keys())
    ]


async def prove(
    store: Store, entries: Iterable[Entry], *, limit: int = 0, files_only: bool = False
) -> Proved:
    """Prove the bytes of objects, wherever they are; damaged ones are quarantined.

    Args:
        store: whose they are.
        entries: of the objects, in order.
        limit: of how many; 0 for all.
        files_only: whether what is in RAM is not looked at.

    Returns:
        What was found.
    """
    done, last = Proved(), ""
    for number, entry in enumerate(entries):
        if files_only and not entry.on_disk:
            await give_way(number)
            continue
        if limit and done.objects == limit:
            done.last = last
            break
        last = entry.id
        with leased(store, entry):
            proving = store.tiers.prove_file(entry) if files_only else _is_whole(store, entry)
            if not await proving:
                _bad(done, entry).append(entry.id)
        done.objects += 1
        done.size += entry.object.payload_bytes
    return done


def _bad(done: Proved, entry: Entry) -> list[str]:
    """Where an object belongs that was not proved."""
    if entry.on_disk:
        return done.unreadable
    return done.missing if entry.was_missing else done.damaged


@contextmanager
def leased(store: Store, entry: Entry) -> Generator[None]:
    """Have an object stay where it is for the length of the block.

    Yields:
        Nothing.
    """
    lease = store.leases.read("", [entry.id], float("inf"))
    try:
        yield
    finally:
        store.release(lease.id)


async def _is_whole(store: Store, entry: Entry) -> bool:
    if entry.on_disk and not await store.tiers.prove_file(entry):
        return False
    if entry.run is None:
        return True
    if await store.tiers.is_whole_in_ram(entry):
        return True
    if entry.id in store.tiers.catalogue.entries:
        store.tiers.quarantine(entry)
    return False
