"""The router's metrics once more under vLLM's names, made of its own samples at each scrape.

For dashboards, alerts and routers that know vLLM. Nothing is counted twice: a sample of ours
becomes one of theirs, or several add up.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

PREFIX = "vllm:"
LABEL = "model_name"

# theirs, what it says, ours: what has been added up over all labels but the model
_GAUGES = (
    ("num_requests_running", "Requests with a place on a worker", "requests_in_flight"),
    ("num_requests_waiting", "Requests that wait for one", "queue_depth"),
)
_COUNTERS = (
    ("prompt_tokens", "Prompt tokens of requests that started", "prompt_tokens_total"),
    ("generation_tokens", "Tokens of answers", "generated_tokens_total"),
    ("prefix_cache_queries", "Prompt tokens that were looked up", "prompt_tokens_total"),
    ("prefix_cache_hits", "Of them, those that were not computed again", "cached_tokens_total"),
)
_HISTOGRAMS = (
    (
        "time_to_first_token_seconds",
        "Received to the first token sent",
        "time_to_first_token_seconds",
    ),
    (
        "inter_token_latency_seconds",
        "Mean time between two tokens of an answer",
        "inter_token_latency_seconds",
    ),
    ("e2e_request_latency_seconds", "Received to ended", "request_duration_seconds"),
    ("request_queue_time_seconds", "Received to handed to a worker", "queue_wait_seconds"),
)
_REASONS = {
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "stop",
    "grammar_complete": "stop",
    "length": "length",
    "aborted": "abort",
}


_USAGE = ("kv_cache_usage_perc", "Share of what its rows' state may take that it takes")
_SUCCESS = ("request_success", "Requests that ended well, or were aborted, by finished_reason")


def described() -> list[tuple[str, str]]:
    """Name every metric, and say what it is."""
    counters = [(name, text) for name, text, _ in _COUNTERS] + [_SUCCESS]
    return [
        *((name, text) for name, text, _ in _GAUGES),
        _USAGE,
        *((f"{name}_total", text) for name, text in counters),
        *((name, text) for name, text, _ in _HISTOGRAMS),
    ]


@dataclass(frozen=True, slots=True)
class _Sample:
    part: str  # what follows the metric's name
    labels: Mapping[str, str]
    value: float


class VllmNames(Collector):
    """Collects what vLLM would.

    Args:
        made: the router's metrics, by their names in its table.
    """

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = made

    def describe(self) -> list[Metric]:
        """Tell nothing: what is collected is never another collector's."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Collect all of them.

        Yields:
            One family a metric.
        """
        for name, text, ours in _GAUGES:
            yield _gauge(name, text, self._sums(ours))
        yield _gauge(*_USAGE, self._usage())
        for name, text, ours in _COUNTERS:
            family = CounterMetricFamily(PREFIX + name, text, labels=[LABEL])
            for model, value in self._sums(ours).items():
                family.add_metric([model], value)
            yield family
        yield self._successes()
        for name, text, ours in _HISTOGRAMS:
            yield self._histogram(name, text, ours)

    def _samples(self, ours: str) -> Iterator[_Sample]:
        """Read the samples of one of ours that are a model's of the settings."""
        for metric in self._made[ours].collect():
            for sample in metric.samples:
                part = sample.name.removeprefix(metric.name)
                if sample.labels.get("model") and part != "_created":
                    yield _Sample(part, sample.labels, sample.value)

    def _sums(
        self, ours: str, key: Callable[[Mapping[str, str]], bool] = lambda _: True
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        for sample in self._samples(ours):
            if key(sample.labels):
                model = sample.labels["model"]
                sums[model] = sums.get(model, 0.0) + sample.value
        return sums

    def _usage(self) -> dict[str, float]:
        used = self._sums("worker_memory_bytes", lambda labels: labels["kind"] == "state")
        limits = self._sums("worker_state_limit_bytes")
        return {
            model: min(used.get(model, 0.0) / limit, 1.0) if limit else 0.0
            for model, limit in limits.items()
        }

    def _successes(self) -> Metric:
        name, text = _SUCCESS
        family = CounterMetricFamily(PREFIX + name, text, labels=[LABEL, "finished_reason"])
        sums: dict[tuple[str, str], float] = {}
        for sample in self._samples("requests_total"):
            reason = _REASONS.get(sample.labels["finish"])
            if sample.labels["code"] == "OK" and reason:
                key = sample.labels["model"], reason
                sums[key] = sums.get(key, 0.0) + sample.value
        for labels, value in sums.items():
            family.add_metric(labels, value)
        return family

    def _histogram(self, name: str, text: str, ours: str) -> Metric:
        family = Metric(PREFIX + name, text, "histogram")
        for sample in self._samples(ours):
            labels = {LABEL: sample.labels["model"]}
            if "le" in sample.labels:
                labels["le"] = sample.labels["le"]
            family.add_sample(PREFIX + name + sample.part, labels, sample.value)
        return family


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[LABEL])
    for model, value in values.items():
        family.add_metric([model], value)
    return family
