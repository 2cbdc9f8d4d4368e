"""What `bramley top` shows: figures of a cluster, computed from samples of its counters (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from prometheus_client.parser import text_string_to_metric_families

from bramley.client.cache import StoreStats
from bramley.client.cluster import Model, Process
from bramley.client.commands.status import ClusterStatus

_ROUTER = "bramley_router_"
CLASSES = ("system", "interactive", "default", "bulk")

Labels = frozenset[tuple[str, str]]


class Exposition:
    """What was scraped of one process; empty for one that was not."""

    def __init__(self, text: str = "") -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values = self._values.setdefault(sample.name, {})
                values[frozenset(sample.labels.items())] = sample.value

    def __bool__(self) -> bool:
        return bool(self._values)

    def sum(self, name: str, **labels: str) -> float | None:
        """Add up what has these labels, of a metric of the router; None if nothing has."""
        wanted = labels.items()
        values = self._values.get(_ROUTER + name, {})
        found = [value for of, value in values.items() if wanted <= of]
        return sum(found) if found else None

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Read a histogram of the router: observations by the most that they were."""
        found: dict[float, float] = {}
        wanted = labels.items()
        for of, value in self._values.get(f"{_ROUTER}{name}_bucket", {}).items():
            if wanted <= of:
                found[float(dict(of)["le"])] = value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A cluster at one time.

    Attributes:
        at_s: on a clock that never goes back.
        metrics: of the router; empty while it does not answer.
        store: None where there is none, or it does not answer.
    """

    at_s: float
    status: ClusterStatus
    metrics: Exposition = field(default_factory=Exposition)
    store: StoreStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model's figures; None is not known.

    Attributes:
        tokens_s: generated in a second.
        ttft_s: half of the requests had their first token in less.
    """

    model: Model
    waiting: dict[str, int]
    tokens_s: float | None
    ttft_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker's figures; None is not known."""

    process: Process
    step_age_s: float | None
    resident_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """The cache's figures.

    Attributes:
        cached_share: of the prompt tokens, what was not computed; None without a prompt.
        hit_share: of the store's lookups; None without one.
    """

    cached_share: float | None
    hit_share: float | None
    gauges: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All of them.

    Attributes:
        has_metrics: whether the router has shown some.
        cache: None without a store.
    """

    status: ClusterStatus
    has_metrics: bool
    models: list[ModelRow]
    workers: list[WorkerRow]
    cache: CacheRow | None


def overview(samples: Sequence[Sample]) -> Overview:
    """Compute figures.

    Args:
        samples: at least one, the oldest first. Rates are those between the last two; of rare
            things all are looked back on, and the life of the process where that shows none.

    Returns:
        The figures of the last one.
    """
    last = samples[-1]
    return Overview(
        status=last.status,
        has_metrics=bool(last.metrics),
        models=[_model_row(model, samples) for model in last.status.models],
        workers=[
            _worker_row(process, last.metrics)
            for process in last.status.processes
            if process.role == "worker"
        ],
        cache=None if last.store is None else _cache_row(last.store, samples),
    )


def _model_row(model: Model, samples: Sequence[Sample]) -> ModelRow:
    last = samples[-1].metrics
    waiting = {
        each: int(last.sum("queue_depth", model=model.name, **{"class": each}) or 0)
        for each in CLASSES
    }
    return ModelRow(
        model=model,
        waiting=waiting,
        tokens_s=_rate("generated_tokens_total", model.name, samples),
        ttft_s=_median("time_to_first_token_seconds", model.name, samples),
    )


def _worker_row(process: Process, metrics: Exposition) -> WorkerRow:
    return WorkerRow(
        process=process,
        step_age_s=metrics.sum("worker_last_step_age_seconds", worker=process.name),
        resident_bytes=metrics.sum("memory_resident_bytes", worker=process.name),
    )


def _cache_row(store: StoreStats, samples: Sequence[Sample]) -> CacheRow:
    first, last = samples[0].metrics, samples[-1].metrics
    cached = _grown(first.sum("cached_tokens_total"), last.sum("cached_tokens_total"))
    prompts = _grown(first.sum("prompt_tokens_total"), last.sum("prompt_tokens_total"))
    matches = store.counters.get("matches", 0)
    return CacheRow(
        cached_share=cached / prompts if cached is not None and prompts else None,
        hit_share=store.counters.get("match_hits", 0) / matches if matches else None,
        gauges=store.gauges,
    )


def _grown(before: float | None, after: float | None) -> float | None:
    """By how much a counter has grown; since its start, where it did not or began anew."""
    if after is None:
        return None
    return after - before if before is not None and before < after else after


def _rate(name: str, model: str, samples: Sequence[Sample]) -> float | None:
    for before, after in list(pairwise(samples))[-1:]:
        low, high = (each.metrics.sum(name, model=model) for each in (before, after))
        if low is not None and high is not None and after.at_s > before.at_s:
            return max(0.0, high - low) / (after.at_s - before.at_s)
    return None


def _median(name: str, model: str, samples: Sequence[Sample]) -> float | None:
    first, last = (each.metrics.buckets(name, model=model) for each in (samples[0], samples[-1]))
    grown = {most: count - first.get(most, 0.0) for most, count in last.items()}
    return quantile(0.5, grown) or quantile(0.5, last)


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Estimate a quantile as Prometheus does: evenly within its bucket.

    Args:
        share: 0 to 1.
        buckets: observations that were at most so much, by that.

    Returns:
        The estimate; the highest bound, if it is beyond; None without observations.
    """
    counts = sorted(buckets.items())
    if not counts or counts[-1][1] <= 0:
        return None
    rank = share * counts[-1][1]
    low, below = 0.0, 0.0
    for high, count in counts:
        if count >= rank and count > below:
            return low if high == inf else low + (high - low) * (rank - below) / (count - below)
        low, below = high, count
    return low
