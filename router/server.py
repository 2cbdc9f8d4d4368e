"""RouterService: proto in, relay out.

A call is checked as far as it can be without a worker and becomes an entry of the registry.
Whether it runs now, waits or is refused is decided in router/admission.py: the next file of a
request's way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from importlib.metadata import version
from math import inf
from time import monotonic
from typing import Any, NoReturn

import grpc

from bramley.common import logs
from bramley.common.errors import (
    BramleyError,
    Draining,
    InvalidRequest,
    Overloaded,
    UnknownResource,
    Unsupported,
    WorkerLost,
)
from bramley.common.ids import ModelName, RequestId
from bramley.common.status import details_trailers, to_status
from bramley.common.wire import is_span, pack_ids, to_duration, to_seconds, unpack_ids
from bramley.protos.v1 import (
    generation_pb2,
    router_pb2,
    router_pb2_grpc,
    types_pb2,
    worker_pb2,
)
from bramley.router import flushing, store
from bramley.router.admission import Ask
from bramley.router.attempts import Retries, is_lost
from bramley.router.classes import Priority
from bramley.router.clients import Clients
from bramley.router.fleet import WorkerView
from bramley.router.gate import RETRY_AFTER_S, Gate, NotServed
from bramley.router.metrics import Metrics, ModelMetrics
from bramley.router.relay import Relay, Workers, bounded_s
from bramley.router.requests import Registry
from bramley.router.settings import RouterSettings

Context = grpc.aio.ServicerContext[Any, Any]
ID_MAX = 256
N_MAX = 16


class RouterServer(router_pb2_grpc.RouterServiceServicer):
    """The public service.

    Args:
        settings: of the router.
        epoch: of this process.
        workers: the way to them.

    Attributes:
        gates: of each model.
        metrics: of the process.
        registry: of the requests in flight.
        drain_begun: set once it admits nothing more.
    """

    def __init__(self, settings: RouterSettings, epoch: int, workers: Workers) -> None:
        self._settings = settings
        self._epoch = epoch
        self._retries = Retries()
        self._clients = Clients(settings.clients)
        self._workers = workers
        self._started_s = monotonic()
        self.drain_begun = asyncio.Event()
        self.metrics = Metrics()
        self.registry = Registry(epoch)
        names = [ModelName(name) for name in settings.models]
        self._of_model: dict[ModelName, ModelMetrics] = {
            name: self.metrics.add_model(name) for name in names
        }
        self.gates = {
            name: Gate(
                name,
                settings.classes,
                settings.running_max.get(name),
                self._of_model[name],
                workers.prefixes,
            )
            for name in names
        }
        for metrics in self._of_model.values():
            metrics.set_state(types_pb2.MODEL_STATE_STARTING)

    def worker_changed(self, view: WorkerView, before: WorkerView) -> None:
        """Take in what is now known of a model's worker."""
        gate, metrics = self.gates[view.model], self._of_model[view.model]
        gate.update(view)
        metrics.set_state(gate.view.state)
        metrics.worker_changed(view, before, monotonic())

    async def drain(self) -> int:
        """Admit nothing more, and wait until the last request in flight has ended.

        Returns:
            How many ended meanwhile.
        """
        self.drain_begun.set()
        before = self.registry.ended_count
        await self.registry.idle()
        return self.registry.ended_count - before

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        """Stream one generation."""
        with ExitStack() as stack:
            try:
                gate = self._check(request)
                entry = stack.enter_context(self.registry.enter(request.request_id))
                stack.enter_context(self._client_of(request))
            except BramleyError as error:
                self._count_refusal(request.model, error)
                raise
            logs.request_id.set(entry.id)
            ask = _ask(entry.id, request, context.time_remaining())
            relay = Relay(
                request,
                entry=entry,
                gate=gate,
                workers=self._workers,
                ask=ask,
                wait_max_s=self._wait_max_s(request, ask.priority),
                time_remaining=context.time_remaining,
                retries=self._retries,
                metrics=self._of_model[gate.model],
                backlog_bytes=self._settings.backlog_bytes,
            )
            async with (
                _never_again(context),
                _passing_on(context),
                aclosing(relay.responses()) as responses,
            ):
                async for response in responses:
                    yield response

    def _check(self, request: generation_pb2.GenerateRequest) -> Gate:
        if self.drain_begun.is_set():
            raise Draining("the router is draining", retry_after_s=RETRY_AFTER_S)
        gate = self._gate(request.model)
        if request.WhichOneof("input") is None:
            raise InvalidRequest("input", "none of chat, text and token_ids is set")
        for field in ("request_id", "fairness_key"):
            if len(getattr(request, field)) > ID_MAX:
                raise InvalidRequest(field, f"longer than {ID_MAX} characters")
        if request.HasField("n") and not 1 <= request.n <= N_MAX:
            raise InvalidRequest("n", f"{request.n} is not within 1 and {N_MAX}")
        if request.HasField("max_queue_time") and not is_span(request.max_queue_time):
            raise InvalidRequest("max_queue_time", "is negative, or no time at all")
        return gate

    @contextmanager
    def _client_of(self, request: generation_pb2.GenerateRequest) -> Generator[None]:
        """Count a request for its client for the length of the block."""
        key = request.fairness_key
        if too_many := self._clients.enter(key, monotonic()):
            raise Overloaded(
                f"client {key!r} has reached its limit of {too_many.limit}",
                reason=too_many.reason,
                facts={"client": key, "limit": too_many.limit},
                retry_after_s=too_many.retry_after_s,
            )
        try:
            yield
        finally:
            self._clients.leave(key)

    def _wait_max_s(self, request: generation_pb2.GenerateRequest, priority: Priority) -> float:
        wait_max_s = self._settings.classes.of(priority).queue_timeout_s
        if request.HasField("max_queue_time"):
            return min(wait_max_s, to_seconds(request.max_queue_time))
        return wait_max_s

    def _gate(self, model: str) -> Gate:
        if not model:
            raise InvalidRequest("model", "is empty")
        gate = self.gates.get(ModelName(model))
        if gate is None:
            raise UnknownResource("model", model)
        return gate

    def _count_refusal(self, model: str, error: BramleyError) -> None:
        metrics = self._of_model.get(ModelName(model))
        if metrics is None:
            self.metrics.refused(error.code)
        else:
            metrics.ended(error.code, 0)
            metrics.refused(error.reason)

    async def Tokenize(
        self, request: router_pb2.TokenizeRequest, context: Context
    ) -> router_pb2.TokenizeResponse:
        """Answer with the ids that Generate would use."""
        view = self._ready(request.model)
        kind = request.WhichOneof("input")
        if kind is None:
            raise InvalidRequest("input", "none of chat and text is set")
        asked = generation_pb2.GenerateRequest(model=request.model, tools=request.tools)
        if kind == "chat":
            asked.chat.CopyFrom(request.chat)
        else:
            asked.text = request.text
        async with _asking(view, context):
            prepared = await self._workers.stub(view).Prepare(
                worker_pb2.PrepareRequest(request=asked, tokenize_only=True),
                timeout=bounded_s(context.time_remaining()),
            )
        return router_pb2.TokenizeResponse(token_ids=unpack_ids(prepared.token_ids_le))

    async def Detokenize(
        self, request: router_pb2.DetokenizeRequest, context: Context
    ) -> router_pb2.DetokenizeResponse:
        """Answer with the text of ids."""
        view = self._ready(request.model)
        asked = worker_pb2.WorkerServiceDetokenizeRequest(
            token_ids_le=pack_ids(request.token_ids),
            skip_special_tokens=request.skip_special_tokens,
        )
        async with _asking(view, context):
            answer = await self._workers.stub(view).Detokenize(
                asked, timeout=bounded_s(context.time_remaining())
            )
        return router_pb2.DetokenizeResponse(text=answer.text)

    def _all_ready(self, model: str) -> list[WorkerView]:
        """Each ready worker of a model: at least one."""
        self._ready(model)
        return [view for view in self._gate(model).replicas.views if view.is_ready]

    def _ready(self, model: str) -> WorkerView:
        gate = self._gate(model)
        gate.refuse_if_failed()
        if view := gate.choose():
            return view
        raise NotServed(gate.view, "is not ready yet")

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """Tell of every model."""
        return router_pb2.ListModelsResponse(models=map(_model, self.gates.values()))

    async def GetModel(
        self, request: router_pb2.GetModelRequest, context: Context
    ) -> router_pb2.GetModelResponse:
        """Tell of one model."""
        return router_pb2.GetModelResponse(model=_model(self._gate(request.model)))

    async def Abort(
        self, request: router_pb2.AbortRequest, context: Context
    ) -> router_pb2.AbortResponse:
        """End requests by id."""
        return router_pb2.AbortResponse(
            results={
                request_id: router_pb2.AbortResponse.RESULT_ABORTED
                if self.registry.abort(request_id)
                else router_pb2.AbortResponse.RESULT_NOT_FOUND
                for request_id in request.request_ids
            }
        )

    async def GetStatus(
        self, request: router_pb2.GetStatusRequest, context: Context
    ) -> router_pb2.GetStatusResponse:
        """Tell of the router as a whole."""
        gates = self.gates.values()
        return router_pb2.GetStatusResponse(
            version=version("bramley"),
            epoch=self._epoch,
            uptime=to_duration(monotonic() - self._started_s),
            draining=self.drain_begun.is_set(),
            models=map(_model, gates),
            requests_running=sum(gate.running_count for gate in gates),
            requests_waiting=sum(gate.waiting_count for gate in gates),
        )

    async def Drain(
        self, request: router_pb2.DrainRequest, context: Context
    ) -> router_pb2.DrainResponse:
        """Admit nothing more and answer when nothing is in flight."""
        return router_pb2.DrainResponse(requests_finished=await self.drain())

    async def Embed(self, request: Any, context: Context) -> NoReturn:  # noqa: ANN401
        """Refuse: absent."""
        raise Unsupported("this router serves no embeddings")

    async def LoadModel(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
        """Refuse: absent."""
        raise Unsupported("every model of the settings is loaded at start, and no other can be")
        yield  # a stream's handler is a generator

    async def UnloadModel(self, request: Any, context: Context) -> NoReturn:  # noqa: ANN401
        """Refuse: absent."""
        raise Unsupported("a model of the settings stays loaded")

    async def LoadAdapter(self, request: Any, context: Context) -> NoReturn:  # noqa: ANN401
        """Refuse: absent."""
        raise Unsupported("this router serves no adapters")

    async def UnloadAdapter(self, request: Any, context: Context) -> NoReturn:  # noqa: ANN401
        """Refuse: absent."""
        raise Unsupported("this router serves no adapters")

    async def FlushCache(
        self, request: router_pb2.FlushCacheRequest, context: Context
    ) -> router_pb2.FlushCacheResponse:
        """Have what the cache store holds on the medium."""
        address = store.address_of(self._workers.store)
        roots = await self._cache_roots(request.model, context) if request.model else [b""]
        gates = [self._gate(request.model)] if request.model else self.gates.values()
        views = [view for gate in gates for view in gate.replicas.views if view.is_ready]
        unsaved = await flushing.hand_over(self._workers, views, context.time_remaining())
        async with _passing_on(context):
            answers = [await store.flush(address, root, context.time_remaining()) for root in roots]
        return flushing.with_unsaved(store.together(answers), unsaved)

    async def CloseSession(
        self, request: router_pb2.CloseSessionRequest, context: Context
    ) -> router_pb2.CloseSessionResponse:
        """Keep what is cached of a session no longer than anything else."""
        asked = worker_pb2.WorkerServiceCloseSessionRequest(
            session_key=request.session_key, salt=request.salt
        )
        within_s = bounded_s(context.time_remaining())
        views = self._all_ready(request.model)
        async with _asking(views[0], context):
            answers = await asyncio.gather(
                *[self._workers.stub(view).CloseSession(asked, timeout=within_s) for view in views]
            )
        return router_pb2.CloseSessionResponse(found=any(answer.found for answer in answers))

    async def _cache_roots(self, model: str, context: Context) -> Sequence[bytes]:
        asked, within_s = worker_pb2.InfoRequest(), bounded_s(context.time_remaining())
        views = self._all_ready(model)
        async with _asking(views[0], context):
            told = await asyncio.gather(
                *[self._workers.stub(view).Info(asked, timeout=within_s) for view in views]
            )
        roots = list(dict.fromkeys(root for info in told for root in info.cache_roots))
        if not roots:
            raise InvalidRequest("model", "it has stored nothing yet: leave it out to flush all")
        return [b""] if any(info.cache_roots_cut for info in told) else roots

    async def ExplainCache(
        self, request: router_pb2.ExplainCacheRequest, context: Context
    ) -> router_pb2.ExplainCacheResponse:
        """Say how much of an input the cache store has, and why not more."""
        store.address_of(self._workers.store)
        view = self._ready(request.model)
        asked = generation_pb2.GenerateRequest(
            model=request.model,
            adapter=request.adapter,
            cache=types_pb2.CacheHints(salt=request.salt) if request.salt else None,
        )
        match request.WhichOneof("input"):
            case "chat":
                asked.chat.CopyFrom(request.chat)
            case "text":
                asked.text = request.text
            case "token_ids":
                asked.token_ids.CopyFrom(request.token_ids)
            case None:
                raise InvalidRequest("input", "none of chat, text and token_ids is set")
        async with _asking(view, context):
            told = await self._workers.stub(view).Explain(
                worker_pb2.WorkerServiceExplainRequest(request=asked),
                timeout=bounded_s(context.time_remaining()),
            )
        return router_pb2.ExplainCacheResponse(
            prompt_tokens=told.prompt_tokens,
            cached=told.cached,
            explanation=told.explanation,
            first_differing_block=told.first_differing_block,
            mismatched_fields=told.mismatched_fields,
        )


def _priority(request: generation_pb2.GenerateRequest) -> Priority:
    """The class of a request; one that is unset, or newer than this router, is DEFAULT."""
    known = request.priority in list(Priority)
    return Priority(request.priority) if known else Priority.DEFAULT


def _ask(
    request_id: RequestId, request: generation_pb2.GenerateRequest, remaining_s: float | None
) -> Ask:
    now_s = monotonic()
    return Ask(
        id=request_id,
        priority=_priority(request),
        key=request.fairness_key,
        nbytes=request.ByteSize(),
        entered_s=now_s,
        deadline_s=inf if remaining_s is None else now_s + remaining_s,
    )


def _model(gate: Gate) -> router_pb2.Model:
    view = gate.view
    load = view.load
    loads = [one.load for one in gate.replicas.views]
    return router_pb2.Model(
        name=view.model,
        state=view.state,
        reason=view.reason,
        revision=view.revision,
        limits=view.limits if view.is_ready else None,
        load_progress=load.load_progress if load else 0.0,
        requests_running=gate.running_count,
        requests_waiting=gate.waiting_count,
        memory_bytes=sum(one.memory_bytes for one in loads if one),
    )


@asynccontextmanager
async def _passing_on(context: Context) -> AsyncGenerator[None]:
    """End the call with another process's own status, details and all."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "", details_trailers(error))


@asynccontextmanager
async def _asking(view: WorkerView, context: Context) -> AsyncGenerator[None]:
    """End a short call as its worker says, or with the news that it died."""
    async with _passing_on(context):
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if not is_lost(error):
                raise
            raise WorkerLost(view.model) from error


@asynccontextmanager
async def _never_again(context: Context) -> AsyncGenerator[None]:
    """Forbid gRPC to try a call again of whose answer a part was sent."""
    try:
        yield
    except WorkerLost as error:
        if not error.tokens_emitted:
            raise
        status = to_status(error)
        pushback = ("grpc-retry-pushback-ms", "-1")
        metadata = (*(status.trailing_metadata or ()), pushback)
        await context.abort(status.code, status.details, metadata)
