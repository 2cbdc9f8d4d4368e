"""What there is in a store now, by the names that metrics and Stats show."""

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bramley.cachestore.disk import Disk
    from bramley.cachestore.scrub import Scrubber
    from bramley.cachestore.spill import Spiller
    from bramley.cachestore.tiers import Tiers

_OF_DISK = (
    *("ssd_bytes", "ssd_budget_bytes", "ssd_over_budget_bytes", "quarantine_bytes"),
    *("newer_files", "foreign_files", "unreadable_files"),
    *("breaker_is_full", "breaker_wait_s", "scrub_round_s"),
)


def gauges(
    tiers: "Tiers", spiller: "Spiller | None", scrubber: "Scrubber | None"
) -> dict[str, int]:
    """Read those of the tiers, and of what works on them."""
    disk = tiers.disk
    found = dict.fromkeys(_OF_DISK, 0)
    if disk is not None and spiller is not None:
        found |= _of_disk(disk, spiller)
    if scrubber is not None:
        found["scrub_round_s"] = round(scrubber.round_s)
    return found | {
        "objects": len(tiers.catalogue.entries),
        "orphans": tiers.catalogue.orphans,
        "ram_bytes": tiers.catalogue.ram_bytes,
        "ram_segment_bytes": tiers.memory.arena.total_bytes,
        "ram_budget_bytes": tiers.memory.arena.budget,
        "ssd_is_on": int(disk is not None),
        "ssd_is_failing": int(
            tiers.is_disk_failing or tiers.reads.late > 0 or not tiers.has_folder
        ),
        "ssd_late_reads": tiers.reads.late,
        "sessions": len(tiers.sessions),
        "pending": len(tiers.pending),
        "pending_bytes": tiers.pending_bytes,
        "read_leases": len(tiers.leases.reads),
    }


def _of_disk(disk: "Disk", spiller: "Spiller") -> dict[str, int]:
    used, breaker = disk.used_bytes, spiller.breaker
    return {
        "ssd_bytes": used,
        "ssd_budget_bytes": spiller.budget,
        "ssd_over_budget_bytes": max(0, used - spiller.budget),
        "quarantine_bytes": disk.quarantine_bytes,
        "newer_files": len(disk.found.newer),
        "foreign_files": len(disk.found.foreign),
        "unreadable_files": len(disk.found.unreadable),
        "breaker_is_full": int(breaker.is_full),
        "breaker_wait_s": round(breaker.remaining_s(monotonic())),
    }
