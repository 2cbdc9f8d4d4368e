"""What the cache tells of itself, as plain values."""

import msgspec


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What a flush has put on the medium, and what not.

    Attributes:
        ok: whether everything is there; it outlives a power cut then.
        pending: snapshots that still wait for the disk.
        refused: snapshots that found no room since the last flush.
        failed: snapshots that could not be written since the last flush.
        missing: snapshots without a file, where there is no disk to write to.
        bytes: on the medium.
        longest_prefix_tokens: of the longest prompt there.
    """

    ok: bool
    pending: int
    refused: int
    failed: int
    missing: int
    bytes: int
    longest_prefix_tokens: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt is stored, and why not more.

    Attributes:
        cached_tokens: by the tier that they would come from: "parked", "ram" and "ssd".
        explanation: in words.
        first_differing_block: of 256 tokens, counted from 0: the first one that is not there.
        mismatched_fields: in which the nearest known namespace differs from the prompt's.
    """

    prompt_tokens: int
    cached_tokens: dict[str, int]
    explanation: str
    first_differing_block: int
    mismatched_fields: list[str]


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The cache store's counts since its start, and how it is now, by name."""

    counters: dict[str, int]
    gauges: dict[str, int]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of stored bytes.

    Attributes:
        objects: that were looked at.
        corrupt: ids of damaged ones, which are set aside.
        unreadable: that could not be read this time, and are kept.
        missing: whose file has gone.
    """

    objects: int
    corrupt: list[str]
    unreadable: int = 0
    missing: int = 0


class CachedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One stored object.

    Attributes:
        short_id: as many leading characters of its id as no other object's has; 8 at least.
        namespace: root, in hex.
        model: that a running worker serves from this namespace; empty if none is known.
        kind: "extent", "state" or "tail".
        first_token: tokens before it.
        promise: "held", "spilled" or "flushed".
        tiers: "ram", "ssd" or both.
        session: empty without one.
        idle_s: since it was last used; None where that was before the store's start.
        pinned_s: how long a pin holds yet; 0 without one.
    """

    id: str
    short_id: str
    namespace: str
    model: str
    kind: str
    group: str
    first_token: int
    end_token: int
    bytes: int
    promise: str
    tiers: list[str]
    session: str
    idle_s: float | None
    pinned_s: float


class CachedNamespace(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a namespace.

    Attributes:
        root: in hex.
        model: as of a CachedObject.
        identity: what the root stands for; empty where nothing tells.
    """

    root: str
    model: str
    identity: dict[str, str | list[str]]
    objects: int
    bytes: int


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Objects, and whether there are more than were asked for."""

    objects: list[CachedObject]
    more: bool


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """How many objects were pinned, the bytes of all that are, and how many may be."""

    objects: int
    bytes: int
    bytes_max: int


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """What went, and how many objects stayed because of what.

    Attributes:
        held: somebody reads or writes them now.
        pinned: by an administrator.
        followed: others that stay follow from them.
    """

    objects: int
    bytes: int
    held: int
    pinned: int
    followed: int

    @property
    def kept(self) -> int:
        """How many stayed."""
        return self.held + self.pinned + self.followed


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; ``left_out`` objects cannot be used on their own."""

    objects: int
    bytes: int
    left_out: int


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken in, what was there already, and how much of it is in RAM alone."""

    objects: int
    bytes: int
    skipped: int
    held: int
