"""Settings of the cache store: its tiers, their bounds, how long a lease lives."""

from typing import Annotated

import msgspec

_BYTES_MAX = 1 << 62  # sums of some still fit 64 bits

Bytes = Annotated[int, msgspec.Meta(ge=0, le=_BYTES_MAX)]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cache store as the ``[store]`` table of ``cluster.toml`` describes it.

    Attributes:
        folder: of the SSD tier; without one there is only the RAM tier.
        ram_bytes: of the RAM tier; 0 takes 10 % of this machine's RAM, 1 to 16 GB.
        disk_bytes: of the SSD tier; 0 takes 10 % of what the disk has free, at most 100 GB.
        keep_free_bytes: of its volume that are left to others; 0 takes 5 GB or 5 %, whichever is
            more, but at most 10 %.
        scrub_bytes_s: how fast idle time is used to prove what is on disk; 0 turns that off.
        staging_bytes: shared memory in which each worker hands over what it stores.
        lease_ttl_s: how long a stopped worker keeps what it reads from leaving.
        write_queue_bytes: of snapshots that may wait for the disk; 0 takes half of the RAM tier.
        http: where Prometheus scrapes; port 0 takes a free one; empty for nowhere.
        die_at: for tests: the point of the write path at which to die.
    """

    folder: str = ""
    ram_bytes: Bytes = 0
    disk_bytes: Bytes = 0
    keep_free_bytes: Bytes = 0
    scrub_bytes_s: Bytes = 50 << 20
    staging_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=_BYTES_MAX)] = 128 << 20
    lease_ttl_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    write_queue_bytes: Bytes = 0
    http: str = ""
    die_at: str = ""


_GB = 1 << 30


def ram_budget(settings: StoreSettings, machine_bytes: int) -> int:
    """Bytes of the RAM tier on a machine with ``machine_bytes`` of RAM."""
    return settings.ram_bytes or min(max(_GB, machine_bytes // 10), 16 * _GB)


def disk_budget(settings: StoreSettings, free_bytes: int) -> int:
    """Bytes of the SSD tier, where ``free_bytes`` are free or ours already."""
    return settings.disk_bytes or min(free_bytes // 10, 100 * _GB)


def disk_floor(settings: StoreSettings, volume_bytes: int) -> int:
    """Bytes to be left free on a volume of so many."""
    usual = min(max(5 * _GB, volume_bytes // 20), volume_bytes // 10)
    return settings.keep_free_bytes or usual
