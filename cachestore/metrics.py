"""Every metric of the store, in one table, read from the store's own counts when asked."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX = "bramley_cachestore_"

# name, help, label, the store's count for each value of the label
COUNTERS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("matches", "Match calls", "result", {"all": "matches", "hit": "match_hits"}),
    ("matched_tokens", "Tokens of the deepest boundaries found", "", {"": "matched_tokens"}),
    (
        "acquired_objects",
        "Objects leased, by the tier they were in",
        "tier",
        {"ram": "acquired_ram", "ssd": "acquired_ssd"},
    ),
    (
        "reservations",
        "Write leases, and how they ended",
        "end",
        {"all": "reserved", "sealed": "sealed", "aborted": "aborted", "expired": "expired"},
    ),
    (
        "sealed_objects",
        "Sealed objects, by what became of their way to the disk",
        "fate",
        {fate: fate for fate in ("spilled", "superseded", "evicted_clean", "failed")},
    ),
    (
        "refusals",
        "Refused reservations",
        "reason",
        {
            reason: f"refused_{reason}"
            for reason in (
                *("queue_full", "ram_full", "disk_full", "oversize"),
                *("parent_missing", "breaker_open"),
            )
        },
    ),
    (
        "evictions",
        "Copies dropped from RAM, and objects removed",
        "from",
        {"ram": "dropped_from_ram", "ssd": "evicted_from_disk", "hand": "evicted_by_hand"},
    ),
    (
        "corrupt",
        "Payloads that did not have their checksums",
        "where",
        {"stored": "corrupt", "seal": "corrupt_seals"},
    ),
    ("missing_files", "Files of objects that were not there", "", {"": "missing_files"}),
    ("rewritten_objects", "Objects in RAM whose file was lost", "", {"": "rewritten"}),
    ("expired_read_leases", "Read leases that nobody renewed", "", {"": "expired_reads"}),
    ("written_bytes", "Payload written to the disk", "", {"": "written_bytes"}),
    ("late_reads", "Reads that the disk did not answer in time", "", {"": "late_reads"}),
    ("scrubbed_bytes", "Payload that was proved in idle time", "", {"": "scrubbed_bytes"}),
    ("scrub_corrupt", "Objects found damaged by that", "", {"": "scrub_corrupt"}),
    ("breaker_trips", "Times that the disk was found full or sick", "", {"": "breaker_trips"}),
)

# name, help: as Store.gauges names them
GAUGES: tuple[tuple[str, str], ...] = (
    ("objects", "Objects in either tier"),
    ("orphans", "Objects that no prompt reaches, since something before them is missing"),
    ("namespaces", "Namespaces that workers have opened"),
    ("ram_bytes", "Payload in the RAM tier"),
    ("ram_segment_bytes", "Memory that the RAM tier takes"),
    ("ram_budget_bytes", "Memory that the RAM tier may take"),
    ("ssd_bytes", "Bytes of the disk that the SSD tier takes"),
    ("ssd_budget_bytes", "Bytes of the disk that the SSD tier may take"),
    ("ssd_over_budget_bytes", "Bytes that it takes beyond that; they leave once it is used"),
    ("quarantine_bytes", "Bytes of damaged files that were set aside"),
    ("newer_files", "Files of a newer format in its folder, left alone"),
    ("foreign_files", "Files of others in its folder, left alone"),
    ("unreadable_files", "Files and folders of it that could not be read at the start"),
    ("ssd_is_on", "1 if there is an SSD tier"),
    (
        "ssd_is_failing",
        "1 while the disk is full, sick or not there: writing is left alone, or reads fail",
    ),
    ("breaker_is_full", "1 while writing is left alone because there is no room"),
    ("breaker_wait_s", "Seconds until writing is tried again"),
    ("scrub_round_s", "When all that is on disk had been proved last, in Unix time; 0 for never"),
    ("ssd_late_reads", "Reads that did not end in time, and have not yet"),
    ("sessions", "Sessions whose newest objects leave last"),
    ("pending", "Sealed objects without a file"),
    ("pending_bytes", "Payload of sealed objects without a file"),
    ("read_leases", "Read leases"),
    ("write_leases", "Write leases"),
)


class StoreCollector(Collector):
    """Reads the store's counts and gauges at each scrape."""

    def __init__(self, counts: Mapping[str, int], gauges: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Collect all of them.

        Yields:
            One family a metric.
        """
        for name, text, label, of in COUNTERS:
            family = CounterMetricFamily(PREFIX + name, text, labels=[label] if label else [])
            for value, count in of.items():
                family.add_metric([value] if label else [], self._counts.get(count, 0))
            yield family
        gauges = self._gauges()
        for name, text in GAUGES:
            yield GaugeMetricFamily(PREFIX + name, text, value=gauges[name])


def registry(
    counts: Mapping[str, int], gauges: Callable[[], Mapping[str, int]]
) -> CollectorRegistry:
    """Make a registry that shows a store."""
    made = CollectorRegistry()
    made.register(StoreCollector(counts, gauges))
    return made
