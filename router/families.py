"""Every metric of the router, in one table, and the closed sets that its labels come from."""

from typing import NamedTuple, get_args

from prometheus_client import Counter, Gauge, Histogram

from bramley.common.wire import short_name
from bramley.protos.v1 import types_pb2
from bramley.router import exits
from bramley.router.breaker import State as BreakerState
from bramley.router.routing import Why

PREFIX = "bramley_router_"

_SHORT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_LOAD_S = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

SOURCES = ("client", "abort", "slow_reader")
WHYS: tuple[str, ...] = get_args(Why)
RETRY_REASONS = ("worker_lost", "cut_short", "draining", "device_oom")
TIERS = ("parked", "ram", "ssd")
UNLOAD_REASONS = ("asked", "idle", "room", "changed", "removed")
MEMORY_KINDS = ("weights", "state", "workspace")
BREAKER_STATES: tuple[str, ...] = get_args(BreakerState)
RESTART_REASONS = exits.REASONS
STATES = tuple(
    short_name(types_pb2.ModelState, state) for state in types_pb2.ModelState.values()[1:]
)
FINISHES: dict[int, str] = {
    reason: short_name(types_pb2.FinishReason, reason).lower()
    for reason in types_pb2.FinishReason.values()[1:]
}
NO_STATUS = "none"
OTHER = "other"  # a value that a newer worker knows
NO_FINISH = "none"

Kind = type[Counter] | type[Gauge] | type[Histogram]


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _of_model(
    name: str,
    kind: Kind,
    text: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Family:
    return Family(name, kind, text, ("model", *labels), buckets)


def _of_worker(name: str, kind: Kind, text: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(name, kind, text, ("model", "worker", *labels))


TABLE = (
    _of_model("requests_total", Counter, "Generate and Embed calls that ended", ("code", "finish")),
    _of_model("requests_in_flight", Gauge, "Requests with a place on a worker"),
    _of_model("queue_depth", Gauge, "Requests that wait for a worker or their turn", ("class",)),
    _of_model("refusals_total", Counter, "Requests refused before a worker had them", ("reason",)),
    _of_model("preemptions_total", Counter, "Bulk requests put back for an urgent one"),
    _of_model("routing_decisions_total", Counter, "Places on workers, by what chose", ("why",)),
    _of_model("retries_total", Counter, "Requests that were given to another worker", ("reason",)),
    _of_model(
        "retry_budget_exhausted_total", Counter, "Requests not tried again: retries were spent"
    ),
    _of_model("booked_requests", Gauge, "Requests booked on the model's workers"),
    _of_model("booked_prefill_tokens", Gauge, "Prompt tokens booked and not computed yet"),
    _of_model("booked_memory_bytes", Gauge, "Memory booked for rows, by the workers' own figures"),
    _of_model("queue_wait_seconds", Histogram, "Received to handed to a worker", (), _SHORT_S),
    _of_model(
        "time_to_first_token_seconds", Histogram, "Received to the first Delta sent", (), _LONG_S
    ),
    _of_model(
        "inter_token_latency_seconds",
        Histogram,
        "Mean time between two tokens of an answer, observed once at its end",
        (),
        _TOKEN_S,
    ),
    _of_model("request_duration_seconds", Histogram, "Received to ended", (), _LONG_S),
    _of_model("prompt_tokens_total", Counter, "Prompt tokens of requests that started"),
    _of_model(
        "cached_tokens_total",
        Counter,
        "Of them, those that were not computed again, by where their state was",
        ("tier",),
    ),
    _of_model("generated_tokens_total", Counter, "Tokens received from workers"),
    _of_model("cancellations_total", Counter, "Requests that were cut short", ("source",)),
    _of_model(
        "cancel_latency_seconds",
        Histogram,
        "A client's leave, or its Abort, to its place being free",
        (),
        _SHORT_S,
    ),
    _of_model("model_state", Gauge, "1 for the state that clients are told", ("state",)),
    _of_model(
        "model_load_seconds", Histogram, "A worker's start to its model's being ready", (), _LOAD_S
    ),
    _of_model("model_unloads_total", Counter, "Unloads of the model, by why", ("reason",)),
    _of_model(
        "memory_reserved_bytes", Gauge, "Memory that the ledger holds for the model's workers"
    ),
    _of_worker("worker_state", Gauge, "1 for the state that the worker is in", ("state",)),
    _of_model(
        "worker_restarts_total",
        Counter,
        "Restarts of the model's workers, by how the one before ended",
        ("reason",),
    ),
    _of_worker(
        "worker_last_step_age_seconds",
        Gauge,
        "Time that its engine has been inside its present step",
    ),
    _of_worker("worker_requests_running", Gauge, "Requests in its batch, by its own report"),
    _of_worker("worker_requests_waiting", Gauge, "Requests that wait inside it"),
    _of_worker("worker_memory_bytes", Gauge, "Memory of its device that it uses", ("kind",)),
    _of_worker(
        "worker_state_limit_bytes",
        Gauge,
        "What the state of its rows may take: the setting, or all rows of full length",
    ),
    _of_worker("memory_resident_bytes", Gauge, "Memory of its process, as the system counts"),
    _of_worker(
        "breaker_state",
        Gauge,
        "1 for the state of the breaker that keeps requests off it",
        ("state",),
    ),
    _of_model("snapshots_owed", Gauge, "Conversations of which the cache store lacks something"),
    _of_model("snapshots_stored_total", Counter, "Objects that the cache store took"),
    _of_model("snapshots_refused_total", Counter, "Objects to be tried again", ("reason",)),
    _of_model("snapshots_lost_total", Counter, "Conversations not stored in time", ("reason",)),
    _of_model("cache_lookups_total", Counter, "Lookups in the cache store", ("result",)),
    Family("memory_budget_bytes", Gauge, "What models and store may take together; 0 is no limit"),
    Family("memory_store_bytes", Gauge, "Of the budget, for the cache store's RAM tier"),
    Family(
        "event_loop_lag_seconds",
        Histogram,
        "How late the router's event loop was, sampled twice a second",
        (),
        _LAG_S,
    ),
    Family(
        "http_requests_total",
        Counter,
        "HTTP requests that ended, by route and class of status: `none` where nobody stayed for it",
        ("path", "status"),
    ),
    Family(
        "http_first_byte_seconds",
        Histogram,
        "A request of the API received to its answer begun",
        ("path",),
        _LONG_S,
    ),
    Family("http_connections", Gauge, "Connections of the HTTP side"),
    Family("http_body_bytes", Gauge, "Bytes of HTTP requests' bodies that are being read"),
    Family("build_info", Gauge, "Always 1", ("version",)),
)
