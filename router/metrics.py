"""The router's metrics: bound once for each model and worker, and gone with them.

Gauges are set from counts, never moved by one: a missed step could not be seen.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bramley.common.ids import ModelName, WorkerName
from bramley.common.wire import short_name
from bramley.protos.v1 import types_pb2
from bramley.router import families
from bramley.router.booking import Ledger
from bramley.router.classes import Priority
from bramley.router.families import PREFIX
from bramley.router.fleet import WorkerView
from bramley.router.totals import Totals
from bramley.router.worker_metrics import WorkerMetrics

UNKNOWN = ""  # the one model of all requests that name none of ours: no name is empty


class ModelMetrics:
    """The metrics of one model, bound to its name.

    Attributes:
        state_bytes: that the rows of one of its workers may take; 0 where no limit is set.
    """

    def __init__(self, made: dict[str, Any], model: ModelName) -> None:
        self._made = made
        self._model = model
        self.state_bytes = 0
        self._workers: dict[WorkerName, WorkerMetrics] = {}
        self._totals = Totals()
        self._is_gone = False
        self.in_flight: Gauge = self._bound("requests_in_flight")
        self.queue_depth: dict[Priority, Gauge] = {
            priority: self._bound("queue_depth", priority.name.lower()) for priority in Priority
        }
        self.preemptions: Counter = self._bound("preemptions_total")
        self.choices = self._each("routing_decisions_total", families.WHYS)
        self.retries = self._each("retries_total", families.RETRY_REASONS)
        self.retries_spent: Counter = self._bound("retry_budget_exhausted_total")
        self.booked: tuple[Gauge, Gauge, Gauge] = (
            self._bound("booked_requests"),
            self._bound("booked_prefill_tokens"),
            self._bound("booked_memory_bytes"),
        )
        self.queue_wait: Histogram = self._bound("queue_wait_seconds")
        self.ttft: Histogram = self._bound("time_to_first_token_seconds")
        self.itl: Histogram = self._bound("inter_token_latency_seconds")
        self.duration: Histogram = self._bound("request_duration_seconds")
        self.prompt_tokens: Counter = self._bound("prompt_tokens_total")
        self.generated_tokens: Counter = self._bound("generated_tokens_total")
        self._cached = self._each("cached_tokens_total", families.TIERS)
        self.cancellations = self._each("cancellations_total", families.SOURCES)
        self.cancel_latency: Histogram = self._bound("cancel_latency_seconds")
        self.unloads = self._each("model_unloads_total", families.UNLOAD_REASONS)
        self.reserved: Gauge = self._bound("memory_reserved_bytes")
        self.snapshots_owed: Gauge = self._bound("snapshots_owed")
        self._states = self._each("model_state", families.STATES)

    def _bound(self, name: str, *labels: str) -> Any:  # noqa: ANN401
        return self._made[name].labels(self._model, *labels)

    def _each(self, name: str, labels: tuple[str, ...]) -> dict[str, Any]:
        return {label: self._bound(name, label) for label in labels}

    def _count(self, name: str, *labels: str, by: int = 1) -> None:
        if not self._is_gone:  # its last requests must not bring its series back
            self._bound(name, *labels).inc(by)

    def ended(self, code: str, finish: int) -> None:
        """Count a request by its status code and the reason of its last Finished, or 0."""
        word = families.FINISHES.get(finish, families.OTHER) if finish else families.NO_FINISH
        self._count("requests_total", code, word)

    def refused(self, reason: str) -> None:
        """Count a refusal by the reason that its client is told."""
        self._count("refusals_total", reason.lower())

    def started(self, prompt_tokens: int, cached: types_pb2.CachedTokens) -> None:
        """Count a prompt, and what of it was not computed again."""
        self.prompt_tokens.inc(prompt_tokens)
        for tier, counter in self._cached.items():
            counter.inc(getattr(cached, tier))

    def set_booked(self, ledger: Ledger) -> None:
        """Show what the model's workers are promised."""
        sums = (ledger.requests, ledger.prefill_tokens, ledger.memory_bytes)
        for gauge, value in zip(self.booked, sums, strict=True):
            gauge.set(value)

    def set_state(self, state: types_pb2.ModelState.ValueType) -> None:
        """Show the state the model is in."""
        current = short_name(types_pb2.ModelState, state)
        for name, gauge in self._states.items():
            gauge.set(name == current)

    def worker_changed(self, view: WorkerView, before: WorkerView, now_s: float) -> None:
        """Take in what is now known of one of its workers."""
        if self._is_gone:
            return
        worker = self._workers.get(view.worker)
        if worker is None:
            worker = self._workers[view.worker] = WorkerMetrics(self._made, view)
        worker.changed(view, before, self.state_bytes, now_s)
        if view.load is None:
            self._totals.gone(view.worker)
        else:
            for name, label, grown in self._totals.news(view.worker, view.epoch, view.load):
                self._count(name, *((label,) if label else ()), by=grown)
        self.snapshots_owed.set(self._totals.owed)

    def set_breakers(self, states: Mapping[WorkerName, str]) -> None:
        """Show the state of each worker's breaker."""
        for name, state in states.items():
            if worker := self._workers.get(name):
                worker.set_breaker(state)

    def drop_workers(self) -> None:
        """Remove every series of its workers: it is to have others from now on."""
        self._workers.clear()
        for family in families.TABLE:
            if "worker" in family.labels:
                self._made[family.name].remove_by_labels({"model": self._model})

    def gone(self) -> None:
        """Count nothing more."""
        self._is_gone = True


class Metrics:
    """The router's metrics, with a registry of their own.

    Attributes:
        made: each metric by its name in the table.
        lag: how late the event loop is.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.made: dict[str, Any] = {}
        for family in families.TABLE:
            more: dict[str, Any] = {"buckets": family.buckets} if family.buckets else {}
            self.made[family.name] = family.kind(
                PREFIX + family.name, family.text, family.labels, registry=self.registry, **more
            )
        self._models: dict[ModelName, ModelMetrics] = {}
        self.lag: Histogram = self.made["event_loop_lag_seconds"]
        self.made["build_info"].labels(version("bramley")).set(1)

    def add_model(self, model: ModelName) -> ModelMetrics:
        """Bind the metrics of a model that the settings name, unless they are."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self.made, model)
        return self._models[model]

    def drop_model(self, model: ModelName) -> None:
        """Remove every series of a model that the settings no longer name."""
        self._models.pop(model).gone()
        for family in families.TABLE:
            if "model" in family.labels:
                self.made[family.name].remove_by_labels({"model": model})

    def refused(self, code: str) -> None:
        """Count a request that named no model of ours: its name is no label."""
        self.made["requests_total"].labels(UNKNOWN, code, families.NO_FINISH).inc()

    def set_memory(
        self, budget_bytes: int, store_bytes: int, reserved: Mapping[ModelName, int]
    ) -> None:
        """Show the ledger: the whole, the store's part, and that of each model (0 if absent)."""
        self.made["memory_budget_bytes"].set(budget_bytes)
        self.made["memory_store_bytes"].set(store_bytes)
        for name, model in self._models.items():
            model.reserved.set(reserved.get(name, 0))
