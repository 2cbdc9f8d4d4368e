"""What writers want room for, and what they then say it is: checked, and looked for. Pure."""

from dataclasses import dataclass

from bramley.cachestore import keys
from bramley.cachestore.catalogue import TOKEN_BYTES, Catalogue, Entry
from bramley.cachestore.keys import HASH_BYTES
from bramley.cachestore.leases import Wish
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.objects import BLOCK, EXTENT_BLOCKS_MAX, Part, StoredObject
from bramley.cachestore.segments import Segment
from bramley.common.errors import InvalidRequest

CHECKSUM_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What a writer says of what it wrote; as in SealRequest.

    Attributes:
        source: the writer's staging, and where in it the payload is; None if it is in place.
        prompt_boundary: whether it ends where the prompt does.
    """

    chains: bytes
    token_ids_le: bytes
    checksums: bytes
    header: bytes
    session_key: str = ""
    source: tuple[Segment, int] | None = None
    prompt_boundary: bool = False


def check(namespace: Namespace, wish: Wish) -> None:
    """Check that an object of the namespace could be as wished.

    Raises:
        InvalidRequest: none could.
    """
    group = namespace.group(wish.group)
    if group is None:
        raise InvalidRequest("group", f"the namespace has no group {wish.group!r}")
    if group.sliceable == (wish.kind == "state"):
        raise InvalidRequest("kind", f"{wish.group} does not hold a {wish.kind}")
    if wish.first_token % BLOCK or len(wish.parent) != HASH_BYTES:
        raise InvalidRequest("parent", "it does not end a whole block")
    blocks, more = divmod(wish.tokens, BLOCK)
    right = {
        "extent": 0 < blocks <= EXTENT_BLOCKS_MAX and not more,
        "tail": wish.tokens > 0 and not blocks,
        "state": not blocks,
    }
    if not right[wish.kind]:
        raise InvalidRequest("tokens", f"a {wish.kind} cannot have {wish.tokens}")
    if wish.nbytes <= 0 or (blocks and wish.nbytes % blocks):
        raise InvalidRequest("bytes", "they are not so many for each part")


def sizes(wish: Wish) -> list[int]:
    """Bytes of each part, without padding."""
    count = wish.tokens // BLOCK if wish.kind == "extent" else 1
    return [wish.nbytes // count] * count


def stored(wish: Wish, seal: Seal, object_id: str, now_s: float) -> StoredObject:
    """Make the object that was reserved, and then written.

    Returns:
        The object.

    Raises:
        InvalidRequest: the two are not the same.
    """
    each = sizes(wish)
    if len(seal.token_ids_le) != wish.tokens * TOKEN_BYTES:
        raise InvalidRequest("token_ids_le", f"{wish.tokens} were reserved")
    if len(seal.chains) != HASH_BYTES * len(each):
        raise InvalidRequest("block_hashes", f"{len(each)} were reserved")
    if len(seal.checksums) != CHECKSUM_BYTES * len(each):
        raise InvalidRequest("checksums", f"{len(each)} were reserved")
    if seal.chains != _chains(wish, seal.token_ids_le):
        raise InvalidRequest("block_hashes", "are not the ones of these tokens")
    parts = tuple(
        Part(
            chain=seal.chains[HASH_BYTES * at : HASH_BYTES * (at + 1)],
            tokens=BLOCK if wish.kind == "extent" else wish.tokens,
            nbytes=size,
            checksum=seal.checksums[CHECKSUM_BYTES * at : CHECKSUM_BYTES * (at + 1)],
        )
        for at, size in enumerate(each)
    )
    return StoredObject(
        id=object_id,
        root=wish.root,
        kind=wish.kind,
        group=wish.group,
        parent=wish.parent,
        first_token=wish.first_token,
        token_ids_le=seal.token_ids_le,
        parts=parts,
        header=seal.header,
        session_key=seal.session_key,
        created_s=now_s,
    )


def _chains(wish: Wish, token_ids_le: bytes) -> bytes:
    if wish.kind == "extent":
        return keys.chain(wish.parent, token_ids_le)
    return keys.tail_hash(wish.parent, token_ids_le) if token_ids_le else wish.parent


def parent_end(catalogue: Catalogue, namespace: Namespace, wish: Wish) -> int | None:
    """Tokens up to where the object is to follow; None if that is not here."""
    groups = namespace.parent_groups(wish.group)
    if wish.parent == wish.root:
        return 0
    if not groups:
        return wish.first_token
    places = [catalogue.block(group, wish.parent) for group in groups]
    ends = {place.first_token + BLOCK for place in places if place is not None}
    whole = all(catalogue.is_reachable(group, wish.parent, wish.root) for group in groups)
    return ends.pop() if whole and len(ends) == 1 else None


def existing(catalogue: Catalogue, wish: Wish) -> Entry | None:
    """Find an object that makes the wished one superfluous, if the wish names its end."""
    if not wish.chain:
        return None
    if wish.kind != "extent":
        return catalogue.end(wish.group, wish.chain)
    place = catalogue.block(wish.group, wish.chain)
    if place is not None and catalogue.is_reachable(wish.group, wish.chain, wish.root):
        return place.entry
    return None


def same(catalogue: Catalogue, new: StoredObject) -> Entry | None:
    """Find an object that holds all that a new one does."""
    if new.kind == "extent":
        found = [catalogue.block(new.group, part.chain) for part in new.parts]
        return found[-1].entry if all(found) and found[-1] is not None else None
    if new.kind == "state":
        return catalogue.end(new.group, new.chain)
    for place in catalogue.nearest(new.group, new.parent, new.token_ids_le):
        if place.tokens.startswith(new.token_ids_le):
            return place.entry
    return None
