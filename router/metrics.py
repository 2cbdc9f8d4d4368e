"""Every metric of the router, in one table; children are bound once for each model."""

from importlib.metadata import version
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bramley.common.ids import ModelName
from bramley.common.wire import short_name
from bramley.protos.v1 import types_pb2
from bramley.router.booking import Ledger
from bramley.router.classes import Priority
from bramley.router.routing import Why

_SHORT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

# name, kind, help, labels after "model", buckets
TABLE: tuple[tuple[str, Any, str, tuple[str, ...], tuple[float, ...]], ...] = (
    ("requests_total", Counter, "Generate calls that ended", ("code", "finish"), ()),
    ("requests_in_flight", Gauge, "Requests with a place on a worker", (), ()),
    ("queue_depth", Gauge, "Requests that wait for a worker or their turn", ("class",), ()),
    ("refusals_total", Counter, "Requests refused before a worker had them", ("reason",), ()),
    ("preemptions_total", Counter, "Bulk requests put back for an urgent one", (), ()),
    ("routing_decisions_total", Counter, "Places on workers, by what chose", ("why",), ()),
    ("retries_total", Counter, "Requests that were given to another worker", ("reason",), ()),
    ("booked_requests", Gauge, "Requests booked on the model's workers", (), ()),
    ("booked_prefill_tokens", Gauge, "Prompt tokens booked and not computed yet", (), ()),
    ("booked_memory_bytes", Gauge, "Memory booked for rows, by the workers' own figures", (), ()),
    ("queue_wait_seconds", Histogram, "Received to handed to a worker", (), _SHORT_S),
    ("time_to_first_token_seconds", Histogram, "Received to the first Delta sent", (), _LONG_S),
    ("request_duration_seconds", Histogram, "Received to ended", (), _LONG_S),
    ("prompt_tokens_total", Counter, "Prompt tokens of requests that started", (), ()),
    ("generated_tokens_total", Counter, "Tokens received from workers", (), ()),
    ("cancellations_total", Counter, "Requests that were cut short", ("source",), ()),
    ("worker_state", Gauge, "1 for the state that the model is in", ("state",), ()),
    ("worker_restarts_total", Counter, "Restarts of the model's worker", (), ()),
    ("snapshots_owed", Gauge, "Conversations of which the cache store lacks something", (), ()),
    ("snapshots_stored_total", Counter, "Objects that the cache store took", (), ()),
    ("snapshots_refused_total", Counter, "Objects to be tried again", ("reason",), ()),
    ("snapshots_lost_total", Counter, "Conversations not stored in time", ("reason",), ()),
    ("cache_lookups_total", Counter, "Lookups in the cache store", ("result",), ()),
)
PREFIX = "bramley_router_"
SOURCES = ("client", "abort", "slow_reader")
WHYS = get_args(Why)
RETRY_REASONS = ("worker_lost", "cut_short", "draining", "device_oom")
_STATES = [short_name(types_pb2.ModelState, state) for state in types_pb2.ModelState.values()[1:]]
_FINISHES: dict[int, str] = {
    reason: short_name(types_pb2.FinishReason, reason).lower()
    for reason in types_pb2.FinishReason.values()
}


class ModelMetrics:
    """The metrics of one model, bound to its name."""

    def __init__(self, metrics: dict[str, Any], model: str) -> None:
        def bound(name: str) -> Any:  # noqa: ANN401
            return metrics[name].labels(model)

        self._metrics = metrics
        self._requests = metrics["requests_total"]
        self._model = model
        self.in_flight: Gauge = bound("requests_in_flight")
        self.queue_depth: dict[Priority, Gauge] = {
            priority: metrics["queue_depth"].labels(model, priority.name.lower())
            for priority in Priority
        }
        self.preemptions: Counter = bound("preemptions_total")
        self.choices: dict[str, Counter] = {
            why: metrics["routing_decisions_total"].labels(model, why) for why in WHYS
        }
        self.retries: dict[str, Counter] = {
            reason: metrics["retries_total"].labels(model, reason) for reason in RETRY_REASONS
        }
        self.booked: tuple[Gauge, Gauge, Gauge] = (
            bound("booked_requests"),
            bound("booked_prefill_tokens"),
            bound("booked_memory_bytes"),
        )
        self._refusals = metrics["refusals_total"]
        self.queue_wait: Histogram = bound("queue_wait_seconds")
        self.ttft: Histogram = bound("time_to_first_token_seconds")
        self.duration: Histogram = bound("request_duration_seconds")
        self.prompt_tokens: Counter = bound("prompt_tokens_total")
        self.generated_tokens: Counter = bound("generated_tokens_total")
        self.restarts: Counter = bound("worker_restarts_total")
        self.snapshots_owed: Gauge = bound("snapshots_owed")
        self.cancellations: dict[str, Counter] = {
            source: metrics["cancellations_total"].labels(model, source) for source in SOURCES
        }
        self._states: dict[str, Gauge] = {
            state: metrics["worker_state"].labels(model, state) for state in _STATES
        }

    def ended(self, code: str, finish: int) -> None:
        """Count a request by its status code and the reason of its last Finished, or 0."""
        self._requests.labels(self._model, code, _FINISHES[finish] if finish else "none").inc()

    def refused(self, reason: str) -> None:
        """Count a refusal by the reason that its client is told."""
        self._refusals.labels(self._model, reason.lower()).inc()

    def set_booked(self, ledger: Ledger) -> None:
        """Show what the model's workers are promised."""
        sums = (ledger.requests, ledger.prefill_tokens, ledger.memory_bytes)
        for gauge, value in zip(self.booked, sums, strict=True):
            gauge.set(value)

    def reported(self, name: str, label: str, grown: int) -> None:
        """Count what a worker has reported since its last report."""
        labels = (label,) if label else ()
        self._metrics[name].labels(self._model, *labels).inc(grown)

    def set_state(self, state: types_pb2.ModelState.ValueType) -> None:
        """Show the state the model is in."""
        current = short_name(types_pb2.ModelState, state)
        for name, gauge in self._states.items():
            gauge.set(name == current)


class Metrics:
    """The router's metrics, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for name, kind, text, labels, buckets in TABLE:
            more: dict[str, Any] = {"buckets": buckets} if buckets else {}
            self._metrics[name] = kind(
                PREFIX + name, text, ("model", *labels), registry=self.registry, **more
            )
        info = Gauge(PREFIX + "build_info", "Always 1", ("version",), registry=self.registry)
        info.labels(version("bramley")).set(1)

    def of_model(self, model: ModelName) -> ModelMetrics:
        """Bind the metrics of a model that the settings name."""
        return ModelMetrics(self._metrics, model)

    def refused(self, code: str) -> None:
        """Count a request that named no model of ours: its name is no label."""
        self._metrics["requests_total"].labels("", code, "none").inc()
