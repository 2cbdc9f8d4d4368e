"""RouterService's calls about what is cached: asked of the model's workers and of the store."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import grpc

from bramley.common.errors import InvalidRequest, WorkerLost
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2, worker_pb2
from bramley.router import flushing, store
from bramley.router.attempts import is_lost
from bramley.router.fleet import WorkerView
from bramley.router.gate import NotServed
from bramley.router.models import Models
from bramley.router.relay import Workers, bounded_s


class Cached:
    """The calls; what a worker or the store answers with that is no OK, is raised as it is.

    Args:
        models: of the router.
        workers: the way to them, and to the store.
    """

    def __init__(self, models: Models, workers: Workers) -> None:
        self._models = models
        self._workers = workers

    async def flush(
        self, request: router_pb2.FlushCacheRequest, remaining_s: float | None
    ) -> router_pb2.FlushCacheResponse:
        """Have what the cache store holds on the medium."""
        address = store.address_of(self._workers.store)
        if request.model:
            roots = await self._roots(request.model, remaining_s)
            gates = [self._models.get(request.model).gate]
        else:
            roots, gates = [b""], list(self._models.gates.values())
        views = [view for gate in gates for view in gate.replicas.views if view.is_ready]
        unsaved = await flushing.hand_over(self._workers, views, remaining_s)
        answers = [await store.flush(address, root, remaining_s) for root in roots]
        return flushing.with_unsaved(store.together(answers), unsaved)

    async def close_session(
        self, request: router_pb2.CloseSessionRequest, remaining_s: float | None
    ) -> router_pb2.CloseSessionResponse:
        """Keep what is cached of a session no longer than anything else."""
        asked = worker_pb2.WorkerServiceCloseSessionRequest(
            session_key=request.session_key, salt=request.salt
        )
        views = self._all_ready(request.model)
        with asking(views[0]):
            answers = await asyncio.gather(
                *[
                    self._workers.stub(view).CloseSession(asked, timeout=bounded_s(remaining_s))
                    for view in views
                ]
            )
        return router_pb2.CloseSessionResponse(found=any(answer.found for answer in answers))

    async def explain(
        self, request: router_pb2.ExplainCacheRequest, remaining_s: float | None
    ) -> router_pb2.ExplainCacheResponse:
        """Say how much of an input the cache store has, and why not more."""
        store.address_of(self._workers.store)
        view = self._all_ready(request.model)[0]
        asked = _input_of(request)
        with asking(view):
            told = await self._workers.stub(view).Explain(
                worker_pb2.WorkerServiceExplainRequest(request=asked),
                timeout=bounded_s(remaining_s),
            )
        return router_pb2.ExplainCacheResponse(
            prompt_tokens=told.prompt_tokens,
            cached=told.cached,
            explanation=told.explanation,
            first_differing_block=told.first_differing_block,
            mismatched_fields=told.mismatched_fields,
        )

    async def _roots(self, model: str, remaining_s: float | None) -> Sequence[bytes]:
        asked, views = worker_pb2.InfoRequest(), self._all_ready(model)
        with asking(views[0]):
            told = await asyncio.gather(
                *[
                    self._workers.stub(view).Info(asked, timeout=bounded_s(remaining_s))
                    for view in views
                ]
            )
        roots = list(dict.fromkeys(root for info in told for root in info.cache_roots))
        if not roots:
            raise InvalidRequest("model", "it has stored nothing yet: leave it out to flush all")
        return [b""] if any(info.cache_roots_cut for info in told) else roots

    def _all_ready(self, model: str) -> list[WorkerView]:
        """Each ready worker of a model: at least one."""
        gate = self._models.get(model).gate
        gate.refuse_if_failed()
        views = [view for view in gate.replicas.views if view.is_ready]
        if not views:
            raise NotServed(gate.view, "is not ready yet")
        return views


def _input_of(request: router_pb2.ExplainCacheRequest) -> generation_pb2.GenerateRequest:
    asked = generation_pb2.GenerateRequest(
        model=request.model,
        adapter=request.adapter,
        cache=types_pb2.CacheHints(salt=request.salt) if request.salt else None,
        tools=request.tools,
        tool_choice=request.tool_choice,
        reasoning=request.reasoning,
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
    return asked


@contextmanager
def asking(view: WorkerView) -> Generator[None]:
    """End a short call as its worker says, or with the news that it died."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if not is_lost(error):
            raise
        raise WorkerLost(view.model) from error
