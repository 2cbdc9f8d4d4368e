"""RouterService: proto in, relay out.

A call is checked as far as it can be without a worker and becomes an entry of the registry.
Whether it runs now, waits or is refused is decided in router/admission.py: the next file of a
request's way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
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
    Unsupported,
    WorkerLost,
)
from bramley.common.ids import ModelName, RequestId
from bramley.common.status import details_trailers, to_status
from bramley.common.together import check_together
from bramley.common.traces import parent_in
from bramley.common.wire import pack_ids, to_duration, to_seconds, unpack_ids
from bramley.protos.v1 import generation_pb2, router_pb2, router_pb2_grpc, worker_pb2
from bramley.router import access, describe, embedding
from bramley.router.admission import Ask
from bramley.router.attempts import Request, Retries
from bramley.router.cached import Cached, asking
from bramley.router.classes import Priority
from bramley.router.clients import Clients
from bramley.router.fleet import WorkerView
from bramley.router.gate import RETRY_AFTER_S, NotServed
from bramley.router.metrics import Metrics
from bramley.router.model import Model
from bramley.router.models import Models
from bramley.router.relay import Relay, Workers, bounded_s
from bramley.router.requests import InFlight, Registry
from bramley.router.settings import RouterSettings
from bramley.router.tracing import Passing, Tracing

Context = grpc.aio.ServicerContext[Any, Any]


class RouterServer(router_pb2_grpc.RouterServiceServicer):
    """The public service.

    Args:
        settings: of the router.
        epoch: of this process.
        workers: the way to them.
        models: that it serves.
        metrics: of the process.

    Attributes:
        registry: of the requests in flight.
        tracing: takes their traces.
        drain_begun: set once it admits nothing more.
    """

    def __init__(
        self,
        settings: RouterSettings,
        epoch: int,
        workers: Workers,
        models: Models,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._models = models
        self._metrics = metrics
        self._epoch = epoch
        self._retries = Retries()
        self._clients = Clients()
        self._workers = workers
        self._cached = Cached(models, workers)
        self._started_s = monotonic()
        self.drain_begun = asyncio.Event()
        self.registry = Registry(epoch)
        self.tracing: Tracing = Passing()

    def apply(self, settings: RouterSettings) -> None:
        """Take new settings; requests that are in flight go on by those they came under."""
        self._settings = settings
        self._models.apply(settings)

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
                model = self._check(request)
                gate = model.gate
                entry = self._enter(stack, request)
            except BramleyError as error:
                self.count_refusal(request.model, error)
                raise
            trace = self.tracing.begin(parent_in(context.invocation_metadata()))
            logs.request_id.set(entry.id)
            logs.trace_id.set(trace.parent.trace_id if trace.parent else "")
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
                metrics=model.metrics,
                trace=trace,
                backlog_bytes=self._settings.backlog_bytes,
            )
            async with (
                _never_again(context),
                passing_on(context),
                aclosing(relay.responses()) as responses,
            ):
                async for response in responses:
                    yield response

    def _open_model(self, name: str) -> Model:
        if self.drain_begun.is_set():
            raise Draining("the router is draining", retry_after_s=RETRY_AFTER_S)
        return self._model(name)

    def _enter(self, stack: ExitStack, request: Request) -> InFlight:
        """Count a request for its client, and register it, until the stack is left."""
        owner = access.caller.get().name
        entry = stack.enter_context(self.registry.enter(request.request_id, owner))
        stack.enter_context(self._client_of(request))
        return entry

    def _check(self, request: generation_pb2.GenerateRequest) -> Model:
        model = self._open_model(request.model)
        if request.WhichOneof("input") is None:
            raise InvalidRequest("input", "none of chat, text and token_ids is set")
        check_together(request)
        return model

    @contextmanager
    def _client_of(self, request: Request) -> Generator[None]:
        """Count a request for its client for the length of the block."""
        caller = access.caller.get()
        key = caller.name or request.fairness_key
        limits = caller.limits(self._settings.clients)
        if too_many := self._clients.enter(key, monotonic(), limits):
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

    def _model(self, name: str) -> Model:
        if not name:
            raise InvalidRequest("model", "is empty")
        return self._models.get(name)

    def count_refusal(self, name: str, error: BramleyError) -> None:
        """Count a Generate call that was refused, by the model it named, where that was read."""
        model = self._models.by_name.get(ModelName(name))
        if model is None:
            self._metrics.refused(error.code)
        else:
            model.metrics.ended(error.code, 0)
            model.metrics.refused(error.reason)

    async def Tokenize(
        self, request: router_pb2.TokenizeRequest, context: Context
    ) -> router_pb2.TokenizeResponse:
        """Answer with the ids that Generate would use."""
        view = self._ready(request.model)
        kind = request.WhichOneof("input")
        if kind is None:
            raise InvalidRequest("input", "none of chat and text is set")
        asked = generation_pb2.GenerateRequest(
            model=request.model,
            tools=request.tools,
            tool_choice=request.tool_choice,
            reasoning=request.reasoning,
        )
        if kind == "chat":
            asked.chat.CopyFrom(request.chat)
        else:
            asked.text = request.text
        check_together(asked)
        async with passing_on(context):
            with asking(view):
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
        async with passing_on(context):
            with asking(view):
                answer = await self._workers.stub(view).Detokenize(
                    asked, timeout=bounded_s(context.time_remaining())
                )
        return router_pb2.DetokenizeResponse(text=answer.text)

    def _ready(self, name: str) -> WorkerView:
        gate = self._model(name).gate
        gate.refuse_if_failed()
        if view := gate.choose():
            return view
        raise NotServed(gate.view, "is not ready yet")

    async def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """Tell of every model."""
        return router_pb2.ListModelsResponse(models=self._described())

    async def GetModel(
        self, request: router_pb2.GetModelRequest, context: Context
    ) -> router_pb2.GetModelResponse:
        """Tell of one model."""
        return router_pb2.GetModelResponse(model=self._describe(self._model(request.model)))

    async def Abort(
        self, request: router_pb2.AbortRequest, context: Context
    ) -> router_pb2.AbortResponse:
        """End requests by id."""
        return router_pb2.AbortResponse(
            results={
                request_id: router_pb2.AbortResponse.RESULT_ABORTED
                if self.registry.abort(request_id, access.caller.get())
                else router_pb2.AbortResponse.RESULT_NOT_FOUND
                for request_id in request.request_ids
            }
        )

    async def GetStatus(
        self, request: router_pb2.GetStatusRequest, context: Context
    ) -> router_pb2.GetStatusResponse:
        """Tell of the router as a whole."""
        gates = self._models.gates.values()
        return router_pb2.GetStatusResponse(
            version=version("bramley"),
            epoch=self._epoch,
            uptime=to_duration(monotonic() - self._started_s),
            draining=self.drain_begun.is_set(),
            models=self._described(),
            requests_running=sum(gate.running_count for gate in gates),
            requests_waiting=sum(gate.waiting_count for gate in gates),
            memory=describe.of_memory(self._models.ledger),
        )

    def _described(self) -> list[router_pb2.Model]:
        return [self._describe(model) for model in self._models.by_name.values()]

    def _describe(self, model: Model) -> router_pb2.Model:
        return describe.of_model(model, self._models.ledger, monotonic())

    async def Drain(
        self, request: router_pb2.DrainRequest, context: Context
    ) -> router_pb2.DrainResponse:
        """Admit nothing more and answer when nothing is in flight."""
        return router_pb2.DrainResponse(requests_finished=await self.drain())

    async def Embed(
        self, request: router_pb2.EmbedRequest, context: Context
    ) -> router_pb2.EmbedResponse:
        """Embed texts, once it is their turn."""
        with ExitStack() as stack:
            try:
                model = self._open_model(request.model)
                embedding.check(request)
                entry = self._enter(stack, request)
            except BramleyError as error:
                self.count_refusal(request.model, error)
                raise
            parent = parent_in(context.invocation_metadata())
            logs.request_id.set(entry.id)
            logs.trace_id.set(parent.trace_id if parent else "")
            ask = _ask(entry.id, request, context.time_remaining())
            call = embedding.Embedding(
                request,
                entry=entry,
                gate=model.gate,
                workers=self._workers,
                ask=ask,
                wait_max_s=self._settings.classes.of(ask.priority).queue_timeout_s,
                time_remaining=context.time_remaining,
                retries=self._retries,
                metrics=model.metrics,
                parent=parent,
            )
            async with passing_on(context):
                return await call.answer()
        raise AssertionError("an ExitStack of ours swallows nothing")

    async def LoadModel(
        self, request: router_pb2.LoadModelRequest, context: Context
    ) -> AsyncIterator[router_pb2.LoadModelResponse]:
        """Load a model, and tell of it at each change until it serves or has failed."""
        self._model(request.model)
        if self.drain_begun.is_set():
            raise Draining("the router is draining", retry_after_s=RETRY_AFTER_S)
        async with aclosing(self._models.load(request.model, pin=request.pin)) as changes:
            async for model in changes:
                yield router_pb2.LoadModelResponse(model=self._describe(model))

    async def UnloadModel(
        self, request: router_pb2.UnloadModelRequest, context: Context
    ) -> router_pb2.UnloadModelResponse:
        """Unload a model, and answer when its processes are gone."""
        self._model(request.model)
        patience_s = self._settings.drain_timeout_s
        if request.HasField("drain_timeout"):
            patience_s = to_seconds(request.drain_timeout)
        await self._models.unload(request.model, patience_s)
        return router_pb2.UnloadModelResponse()

    async def PinModel(
        self, request: router_pb2.PinModelRequest, context: Context
    ) -> router_pb2.PinModelResponse:
        """Keep a model loaded once it is, or no longer."""
        self._model(request.model)
        model = await self._models.pin(request.model, pinned=request.pinned)
        return router_pb2.PinModelResponse(model=self._describe(model))

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
        async with passing_on(context):
            return await self._cached.flush(request, context.time_remaining())

    async def CloseSession(
        self, request: router_pb2.CloseSessionRequest, context: Context
    ) -> router_pb2.CloseSessionResponse:
        """Keep what is cached of a session no longer than anything else."""
        async with passing_on(context):
            return await self._cached.close_session(request, context.time_remaining())

    async def ExplainCache(
        self, request: router_pb2.ExplainCacheRequest, context: Context
    ) -> router_pb2.ExplainCacheResponse:
        """Say how much of an input the cache store has, and why not more."""
        async with passing_on(context):
            return await self._cached.explain(request, context.time_remaining())


def _ask(request_id: RequestId, request: Request, remaining_s: float | None) -> Ask:
    now_s = monotonic()
    return Ask(
        id=request_id,
        priority=Priority.of(request.priority),
        owner=access.caller.get().name,
        key=request.fairness_key,
        nbytes=request.ByteSize(),
        entered_s=now_s,
        deadline_s=inf if remaining_s is None else now_s + remaining_s,
    )


@asynccontextmanager
async def passing_on(context: Context) -> AsyncGenerator[None]:
    """End the call with another process's own status, details and all."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "", details_trailers(error))


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
