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
    """Proof of stored bytes: how many objects were read, and the ids of damaged ones."""

    objects: int
    corrupt: list[str]
