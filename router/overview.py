"""``/status.json``: how the cluster is, for the page: what GetStatus tells, and counts beside it.

It is asked of the router as any client asks, so that a key is told of its own models alone. The
store's figures are of all models together: a key for some of them is not told.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bramley.common.errors import BramleyError
from bramley.common.rpc import open_channel
from bramley.common.wire import short_name, to_seconds
from bramley.protos.v1 import cachestore_pb2, cachestore_pb2_grpc, router_pb2, types_pb2
from bramley.router import families
from bramley.router.gateway.calls import Calls, remote_errors
from bramley.router.gateway.failures import failure_of
from bramley.router.gateway.openai import objects
from bramley.router.gateway.replies import refused

if TYPE_CHECKING:
    from bramley.protos.v1.router_pb2_grpc import RouterServiceAsyncStub

PATH = "/status.json"
_ANSWER_S = 2.0


class Counts(msgspec.Struct):
    """Tokens of a model since the router began."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(families.TIERS, 0)
    )


class Model(Counts, kw_only=True):
    """A model, and what it counts; ``context_tokens`` is 0 while it is not loaded."""

    name: str
    state: str
    reason: str
    progress: float
    running: int
    waiting: int
    pinned: bool
    reserved_bytes: int
    context_tokens: int


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger; a budget of 0 is no limit."""

    budget_bytes: int
    store_bytes: int
    reserved_bytes: int


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache store holds, and how often something was found there."""

    ram_bytes: int
    ram_budget_bytes: int
    has_ssd: bool
    ssd_bytes: int
    ssd_budget_bytes: int
    lookups: int
    hits: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; ``store`` is null where there is none, it does not answer, or is not told of."""

    version: str
    epoch: int
    uptime_s: float
    draining: bool
    running: int
    waiting: int
    memory: Memory
    models: list[Model]
    store: Store | None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where it comes from.

    Attributes:
        stub: of the router.
        made: its metrics, by their names in its table.
        store: tells where the cache store answers; empty for nowhere.
    """

    stub: "RouterServiceAsyncStub"
    made: Mapping[str, Any]
    store: Callable[[], str]


def route(calls: Calls, sources: Sources) -> Route:
    """Make the route."""

    async def endpoint(request: Request) -> Response:
        try:
            told = await _told(request, calls, sources)
        except BramleyError as error:
            failure = failure_of(error)
            return refused(failure, objects.refusal(failure))
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(told), 200, headers, media_type="application/json")

    return Route(PATH, endpoint)


async def _told(request: Request, calls: Calls, sources: Sources) -> Overview:
    caller = calls.admit(request)
    with remote_errors():
        status = await sources.stub.GetStatus(
            router_pb2.GetStatusRequest(), metadata=caller.metadata, timeout=_ANSWER_S
        )
    counts = counted(sources.made)
    return Overview(
        version=status.version,
        epoch=status.epoch,
        uptime_s=to_seconds(status.uptime),
        draining=status.draining,
        running=status.requests_running,
        waiting=status.requests_waiting,
        memory=Memory(
            budget_bytes=status.memory.budget_bytes,
            store_bytes=status.memory.store_bytes,
            reserved_bytes=status.memory.reserved_bytes,
        ),
        models=[_model(model, counts[model.name]) for model in status.models],
        # Who is told of the memory is told of everything.
        store=await _store(sources.store()) if status.HasField("memory") else None,
    )


def _model(model: router_pb2.Model, counts: Counts) -> Model:
    return Model(
        name=model.name,
        state=short_name(types_pb2.ModelState, model.state),
        reason=model.reason,
        progress=round(model.load_progress, 2),
        running=model.requests_running,
        waiting=model.requests_waiting,
        pinned=model.pinned,
        reserved_bytes=model.reserved_bytes,
        context_tokens=model.limits.context_tokens,
        **msgspec.structs.asdict(counts),
    )


def counted(made: Mapping[str, Any]) -> defaultdict[str, Counts]:
    """Read each model's counts off the metrics."""
    counts = defaultdict[str, Counts](Counts)
    for labels, value in _samples(made["prompt_tokens_total"]):
        counts[labels["model"]].prompt_tokens = value
    for labels, value in _samples(made["generated_tokens_total"]):
        counts[labels["model"]].generated_tokens = value
    for labels, value in _samples(made["cached_tokens_total"]):
        counts[labels["model"]].cached_tokens[labels["tier"]] = value
    return counts


def _samples(metric: Any) -> Iterator[tuple[Mapping[str, str], int]]:  # noqa: ANN401
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, int(sample.value)


async def _store(address: str) -> Store | None:
    if not address:
        return None
    async with open_channel(address) as channel:
        stub = cachestore_pb2_grpc.CacheStoreServiceStub(channel)
        try:
            told = await stub.Stats(cachestore_pb2.StatsRequest(), timeout=_ANSWER_S)
        except grpc.aio.AioRpcError:
            return None
    gauges, counters = told.gauges, told.counters
    return Store(
        ram_bytes=gauges["ram_bytes"],
        ram_budget_bytes=gauges["ram_budget_bytes"],
        has_ssd=bool(gauges["ssd_is_on"]),
        ssd_bytes=gauges["ssd_bytes"],
        ssd_budget_bytes=gauges["ssd_budget_bytes"],
        lookups=counters["matches"],
        hits=counters["match_hits"],
    )
