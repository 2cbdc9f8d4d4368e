"""What the store keeps: immutable objects of one namespace, each at a place in a chain.

A prompt is cut into blocks of BLOCK tokens, and each block has a chain hash that names all
tokens up to its end. An *extent* holds a run of whole blocks, a *tail* the tokens after the
last whole block, a *state* what cannot be sliced, at one boundary.
"""

from typing import Literal

import msgspec

BLOCK = 256
EXTENT_BLOCKS_MAX = 64
ALIGN = 16384  # of each block's payload, in RAM and in files

Kind = Literal["extent", "state", "tail"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One block's payload, or the whole of a state or tail.

    Attributes:
        chain: hash of the chain up to this block's end, 32 bytes.
        tokens: in this part: BLOCK, or fewer in a tail.
        nbytes: of the payload, without padding.
        checksum: xxh3-128 of the payload, 16 bytes.
    """

    chain: bytes
    tokens: int
    nbytes: int
    checksum: bytes


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object: everything but its payload.

    Attributes:
        id: unique in the store, file name and name on the wire; hex.
        root: of its namespace, 32 bytes.
        group: the state group that it belongs to, as the namespace declares it.
        parent: chain hash that it follows; the root itself at the start of a prompt.
        first_token: tokens before it.
        token_ids_le: its own tokens, little-endian uint32; compared on a hit.
        parts: in order; payloads follow each other, each padded to ALIGN.
        header: the worker's description of the arrays inside a part; opaque here.
        session_key: the conversation that it was made in.
        created_s: wall clock.
    """

    id: str
    root: bytes
    kind: Kind
    group: str
    parent: bytes
    first_token: int
    token_ids_le: bytes
    parts: tuple[Part, ...]
    header: bytes
    session_key: str = ""
    created_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that it covers itself."""
        return sum(part.tokens for part in self.parts)

    @property
    def chain(self) -> bytes:
        """Chain hash up to its end."""
        return self.parts[-1].chain

    @property
    def payload_bytes(self) -> int:
        """Bytes of all parts, each padded to ALIGN."""
        return sum(padded(part.nbytes) for part in self.parts)


def padded(size: int) -> int:
    """Round up to ALIGN."""
    return -(-size // ALIGN) * ALIGN
