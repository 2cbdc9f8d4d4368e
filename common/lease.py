"""Which supervisor owns a state folder: the lease that it renews and its children look at."""

from pathlib import Path

import msgspec

LEASE_TTL_S = 5.0


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Which supervisor owns a state folder; ``renewed_s`` is on the machine's monotonic clock."""

    epoch: int
    pid: int
    start_time: float
    renewed_s: float

    def is_fresh(self, now_s: float) -> bool:
        """Whether it was renewed within its time; a clock that went back is a restart."""
        return 0 <= now_s - self.renewed_s < LEASE_TTL_S


def read_lease(path: Path) -> Lease | None:
    """Read a lease.

    Returns:
        The lease; None if there is none, or not a whole one.

    Raises:
        OSError: it may be there, but cannot be read: nothing is known of it.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lease)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
