"""Names of what is stored: a namespace's root, and the chain of hashes over a prompt's blocks.

Equal names mean equal state, in every process and on every machine: nothing but the bytes of
the identity and of the tokens goes in, each framed by its length and tagged by what it is.
Changing anything here makes every stored snapshot unreachable; tests/golden holds examples.
"""

import hashlib

import msgspec

from bramley.cachestore.objects import BLOCK

HASH_BYTES = 32

_ROOT_TAG = b"bramley/namespace/1"  # the 1 is the format's version
_BLOCK_TAG = b"bramley/block/1"
_TAIL_TAG = b"bramley/tail/1"
_TOKEN_BYTES = 4
_BLOCK_BYTES = BLOCK * _TOKEN_BYTES

_ABSENT, _TEXT, _LIST = b"\0", b"\1", b"\2"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """All that a snapshot's bytes depend on, beside its tokens. None is not the empty string.

    Attributes:
        weights_digest: of the weights themselves, not of their name.
        config_digest: of the settings that shape the graph.
        adapter_digests: contents of the adapters applied, in order.
        kv_scheme: how each layer keeps its state, in order.
        layout: of the arrays inside an object.
        numerics_epoch: what else changes the numbers: versions, kernels, the BLAS's mode.
        draft_digest: of the draft whose state is kept along.
        salt: the tenant's.
    """

    weights_digest: str
    config_digest: str
    tokenizer_digest: str
    adapter_digests: tuple[str, ...] = ()
    kv_scheme: tuple[str, ...]
    layout: str
    numerics_epoch: str
    draft_digest: str | None = None
    salt: str | None = None


def root(identity: Identity) -> bytes:
    """Name a namespace, in 32 bytes; different identities have different names."""
    digest = hashlib.sha256(framed(_ROOT_TAG))
    for name in Identity.__struct_fields__:
        digest.update(framed(name.encode()) + _value(getattr(identity, name)))
    return digest.digest()


def _value(value: str | tuple[str, ...] | None) -> bytes:
    if value is None:
        return _ABSENT
    if isinstance(value, str):
        return _TEXT + framed(value.encode())
    return _LIST + framed(b"".join(framed(item.encode()) for item in value))


def framed(value: bytes) -> bytes:
    """Put its length before it, so that what follows cannot be taken for a part of it."""
    return len(value).to_bytes(8, "little") + value


def chain(root: bytes, token_ids_le: bytes) -> bytes:
    """Name each prefix of whole blocks.

    Args:
        root: the namespace's, or the name of the prefix that the tokens follow.
        token_ids_le: little-endian uint32; what follows the last whole block is left out.

    Returns:
        32 bytes a block, one after the other.
    """
    head = _BLOCK_TAG
    count = BLOCK.to_bytes(4, "little")
    names: list[bytes] = []
    name = root
    for start in range(0, len(token_ids_le) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        block = token_ids_le[start : start + _BLOCK_BYTES]
        name = hashlib.sha256(b"".join((head, name, count, block))).digest()
        names.append(name)
    return b"".join(names)


def tail_hash(parent: bytes, token_ids_le: bytes) -> bytes:
    """Name the prefix that ends inside a block.

    Args:
        parent: name of the prefix of whole blocks, or the root.
        token_ids_le: the tokens after it, little-endian uint32; at least one, fewer than BLOCK.

    Returns:
        32 bytes.

    Raises:
        ValueError: it is no tail.
    """
    tokens, rest = divmod(len(token_ids_le), _TOKEN_BYTES)
    if rest or not 0 < tokens < BLOCK:
        raise ValueError(f"a tail of {len(token_ids_le)} bytes is not 1 to {BLOCK - 1} tokens")
    count = tokens.to_bytes(4, "little")
    return hashlib.sha256(b"".join((_TAIL_TAG, parent, count, token_ids_le))).digest()


def differing_fields(a: Identity, b: Identity) -> list[str]:
    """Name the fields in which two identities differ, in their order."""
    return [name for name in Identity.__struct_fields__ if getattr(a, name) != getattr(b, name)]
