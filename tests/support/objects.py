"""Objects of a store without any bytes."""

import itertools

import msgspec

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.objects import BLOCK, Kind, Part, StoredObject
from support.store import chain_at

ROOT = bytes(32)
_numbers = itertools.count()


def entry(
    tokens: bytes,
    first_block: int = 0,
    *,
    kind: Kind = "extent",
    group: str = "kv",
    root: bytes = ROOT,
    **fields: object,
) -> Entry:
    """Make the object that follows ``first_block`` blocks of a prompt, up to its end.

    Args:
        tokens: up to its end.
        first_block: where it begins.
        kind: of object.
        group: of states.
        root: of its namespace.
        fields: others of StoredObject.

    Returns:
        Its entry; in neither tier.
    """
    chains = keys.chain(root, tokens)
    own = tokens[first_block * BLOCK * 4 :]
    parent = chain_at(root, chains, first_block)
    if kind == "extent":
        ends = [chain_at(root, chains, at + 1) for at in range(first_block, len(chains) // 32)]
    else:
        ends = [keys.tail_hash(parent, own) if own else parent]
    part_tokens = BLOCK if kind == "extent" else len(own) // 4
    stored = StoredObject(
        id=f"{next(_numbers):04x}",
        root=root,
        kind=kind,
        group=group,
        parent=parent,
        first_token=first_block * BLOCK,
        token_ids_le=own,
        parts=tuple(
            Part(chain=end, tokens=part_tokens, nbytes=100, checksum=bytes(16)) for end in ends
        ),
        header=b"",
    )
    return Entry(msgspec.structs.replace(stored, **fields))


def catalogue(*entries: Entry) -> Catalogue:
    """Make a catalogue of entries."""
    made = Catalogue()
    for one in entries:
        made.add(one)
    return made
