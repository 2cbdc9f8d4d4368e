"""What workers and the store's client say to each other, as plain values (pure)."""

import msgspec

from bramley.cachestore import keys
from bramley.cachestore.objects import BLOCK, Kind


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A place where computing can go on.

    Attributes:
        tokens: before it.
        restore_s: the store's estimate.
    """

    tokens: int
    ram_bytes: int
    ssd_bytes: int
    restore_s: float
    object_ids: tuple[str, ...]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has of a request; at least one boundary, deepest first."""

    root: bytes
    boundaries: tuple[Boundary, ...]
    missing_groups: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is published: all but its payload.

    Attributes:
        parent: chain hash that it follows; the root at the start of a prompt.
        first_token: tokens before it.
        token_ids_le: its own; of an extent whole blocks.
        part_bytes: of each part; parts lie in staging one after the other, padded to ALIGN.
        header: describes the arrays inside a part.
    """

    root: bytes
    kind: Kind
    group: str
    parent: bytes
    first_token: int
    token_ids_le: bytes
    part_bytes: int
    header: bytes
    session_key: str = ""
    prompt_boundary: bool = False

    @property
    def tokens(self) -> int:
        """How many it has itself."""
        return len(self.token_ids_le) // 4

    @property
    def sizes(self) -> list[int]:
        """Bytes of each part."""
        return [self.part_bytes] * (self.tokens // BLOCK if self.kind == "extent" else 1)

    @property
    def chains(self) -> bytes:
        """The chain hash of each part."""
        if self.kind == "extent":
            return keys.chain(self.parent, self.token_ids_le)
        if not self.token_ids_le:
            return self.parent
        return keys.tail_hash(self.parent, self.token_ids_le)


class Published(msgspec.Struct, frozen=True):
    """It is in the store; ``existed`` if somebody else was faster."""

    object_id: str
    existed: bool = False
    is_spilled: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """It is not in the store, and why; a retry may help after ``retry_after_s``, if set."""

    reason: str
    retry_after_s: float | None = None
