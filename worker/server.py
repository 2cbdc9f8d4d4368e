"""WorkerService: proto in, Request to the engine, its outputs back as messages.

Next in the walk: worker/intake.py, which checks a request, then worker/engine/engine.py. Runs
on the event loop; MLX is the engine thread's, and tokenizing has a thread of its own.
"""

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar, TypeVarTuple

import grpc

from bramley.cachestore import keys
from bramley.cachestore.client import StoreClient
from bramley.common import logs
from bramley.common.errors import (
    AlreadyExists,
    Draining,
    InvalidRequest,
    NotLoaded,
    Overloaded,
    Unsupported,
)
from bramley.common.wire import pack_ids, to_seconds, unpack_ids
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2, worker_pb2_grpc
from bramley.worker import intake, translate
from bramley.worker.board import Board
from bramley.worker.embedding.job import EmbedJob
from bramley.worker.embedding.serving import Embedding
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.outputs import Output, Saved
from bramley.worker.generate import Stream
from bramley.worker.loading import Loaded
from bramley.worker.prefix import Found, PrefixCache
from bramley.worker.request import Request
from bramley.worker.sessions import Sessions
from bramley.worker.shaping import Shape, Shaper
from bramley.worker.telling import Telling
from bramley.worker.text.bad_words import spellings
from bramley.worker.text.boundary import StableBoundary
from bramley.worker.text.chat import Conversation, characters, conversation_of
from bramley.worker.text.turns import tools_of

REPORT_GAP_S = 0.02
STEP_S = 0.5  # of an engine that is inside a step when time is over
TOKENIZE_CHARACTERS_MAX = 4 << 20
DETOKENIZE_IDS_MAX = 1 << 20

Context = grpc.aio.ServicerContext[Any, Any]
_Args = TypeVarTuple("_Args")
_Made = TypeVar("_Made")


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one model. ``info`` is filled in once it is loaded."""

    def __init__(
        self, engine: Engine, board: Board, info: worker_pb2.InfoResponse, store: StoreClient
    ) -> None:
        self._engine = engine
        self._board = board
        self._info = info
        self._store = store
        self._loaded: Loaded | None = None
        self._prefixes: PrefixCache
        self._sessions: Sessions
        self._streams: dict[str, Stream | Embedding] = {}  # by the ids of their sequences
        self._telling = Telling()
        self._text = ThreadPoolExecutor(1, "text")
        self._closed = False
        self._lost_told = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._loaded = loaded
        self._sessions = Sessions(loaded.tokenizer, self._text)
        forget = self._sessions.forget_namespace
        self._prefixes = PrefixCache(self._store, loaded.state, forget, self._engine.settle)
        self._boundaries = StableBoundary(loaded.tokenizer)
        self._shaper = Shaper(loaded.tokenizer, loaded.family, loaded.facts.eos_token_ids)
        self._info.limits.CopyFrom(loaded.limits)
        self._info.revision, self._info.dtype = loaded.revision, loaded.dtype
        self._board.limits, self._board.revision = loaded.limits, loaded.revision
        self._board.state = types_pb2.MODEL_STATE_READY
        self._board.changed()

    def deliver(self, outputs: Sequence[Output]) -> None:
        """Hand a step's outputs to their streams; those of a stream that left are dropped."""
        told: list[Stream | Embedding] = []
        for output in outputs:
            if isinstance(output, Saved):  # whose request may have ended
                self._prefixes.publish(output)
            elif stream := self._streams.get(output.request_id):
                stream.put(output)
                told.append(stream)
        self._telling.add(told)

    async def close(self) -> None:
        """Hand over what was saved and end the watches, after a drain."""
        await self._prefixes.close()
        self._shaper.close()
        self._closed = True
        self._board.changed()

    async def save_owed(self, within_s: float) -> int:
        """Hand over what the store lacks of the rows that are here, as far as there is time.

        Returns:
            How many rows still owe something.
        """
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        self._engine.save_owed(monotonic() + within_s, lambda: loop.call_soon_threadsafe(done.set))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s + STEP_S):
                await done.wait()
        return self._engine.counters.owed

    async def drain(self) -> int:
        """Admit nothing more; wait for what runs, and return how many that were."""
        running = len(set(self._streams.values()))
        self._board.state = types_pb2.MODEL_STATE_DRAINING
        self._board.changed()
        await self._idle.wait()
        return running

    async def Prepare(
        self, request: worker_pb2.PrepareRequest, context: Context
    ) -> worker_pb2.PrepareResponse:
        """Check, and turn texts into tokens."""
        logs.follow(context.invocation_metadata())
        loaded = self._serving()
        if request.tokenize_only:
            ids = await self._tokenize(request.request, TOKENIZE_CHARACTERS_MAX)
            return worker_pb2.PrepareResponse(token_ids_le=pack_ids(ids))
        intake.check_fields(request.request, loaded.facts)
        plain = await self._tokenize(request.request)
        ids = await self._as_generated(request.request, plain)
        max_tokens = intake.check_tokens(request.request, ids, loaded.facts)
        own = len(plain) - await self._stable_tokens(request.request, plain)
        await self._shaper.compile(request.request)  # here it can still be refused; it is kept
        token_ids_le = pack_ids(ids)
        root = self._prefixes.root(request.request.cache.salt)
        return worker_pb2.PrepareResponse(
            token_ids_le=token_ids_le,
            block_hashes=keys.chain(root, token_ids_le),
            stable_tokens=max(len(ids) - own, 0),
            max_tokens=max_tokens,
            bad_words_le=map(pack_ids, await self._bad_words(request.request)),
            is_reasoning=self._shaper.is_reasoning(request.request, ids),
        )

    async def Generate(
        self, request: worker_pb2.WorkerServiceGenerateRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerServiceGenerateResponse]:
        """Run one prepared request; leaving the stream frees its row within a step."""
        logs.follow(context.invocation_metadata())
        loaded = self._serving()
        request.internal_id = request.internal_id or uuid.uuid4().hex
        logs.request_id.set(request.internal_id)
        works, shape = await self._works(request, loaded)
        stream = Stream(
            request.request,
            works,
            functools.partial(self._shaper.reading, shape),
            self._engine.cancel,
            functools.partial(self._resume, request.request.cache),
        )
        self._open(works, stream)
        try:
            await self._use_store(works[0], request, stream.cached)
            try:
                self._engine.submit(*works)
            except Overloaded:
                works[0].release()
                raise
            while not stream.is_over:
                for response in await stream.take():
                    if response.HasField("finished"):
                        response.finished.lane = loaded.limits.lane
                        # Kept before the next turn can come.
                        self._keep(request, stream, [response.finished.index])
                    yield response
        finally:
            stream.close()
            for work in works:
                self._engine.cancel(work.id)  # an ended one is ignored
            self._close(works)
            self._keep(request, stream, stream.unfinished)

    async def WatchLoad(
        self, request: worker_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WatchLoadResponse]:
        """Tell the load at every change and heartbeat."""
        seen = -1
        while not self._closed:
            seen = await self._board.wait(seen)
            yield worker_pb2.WatchLoadResponse(load=self._board.load())
            await asyncio.sleep(REPORT_GAP_S)  # changes come in bursts, and each costs the router

    async def Info(
        self, request: worker_pb2.InfoRequest, context: Context
    ) -> worker_pb2.InfoResponse:
        """Tell what this worker is."""
        if self._loaded is not None:
            self._info.cache_roots[:] = self._prefixes.roots
            self._info.cache_roots_cut = self._prefixes.has_forgotten_roots
        return self._info

    async def Detokenize(
        self, request: worker_pb2.WorkerServiceDetokenizeRequest, context: Context
    ) -> worker_pb2.WorkerServiceDetokenizeResponse:
        """Ids to text."""
        loaded = self._serving()
        ids = list(unpack_ids(request.token_ids_le))
        if len(ids) > DETOKENIZE_IDS_MAX:
            raise InvalidRequest("token_ids", f"{len(ids)} is over {DETOKENIZE_IDS_MAX}")
        if wrong := [token for token in ids if token >= loaded.facts.vocabulary]:
            raise InvalidRequest(
                "token_ids",
                f"id {wrong[0]} is outside the vocabulary of {loaded.facts.vocabulary}",
            )
        decode = functools.partial(
            loaded.tokenizer.decode, ids, skip_special_tokens=request.skip_special_tokens
        )
        text = await asyncio.get_running_loop().run_in_executor(self._text, decode)
        return worker_pb2.WorkerServiceDetokenizeResponse(text=text)

    async def Explain(
        self, request: worker_pb2.WorkerServiceExplainRequest, context: Context
    ) -> worker_pb2.WorkerServiceExplainResponse:
        """Tell how much of a prompt the store has, and why not more."""
        self._serving()
        ids = await self._as_generated(request.request, await self._tokenize(request.request))
        told = await self._prefixes.explain(request.request.cache.salt, pack_ids(ids))
        return worker_pb2.WorkerServiceExplainResponse(
            prompt_tokens=len(ids),
            cached=types_pb2.CachedTokens(
                ram=told.matched_tokens - told.ssd_tokens, ssd=told.ssd_tokens
            ),
            explanation=told.explanation,
            first_differing_block=told.first_differing_block,
            mismatched_fields=told.mismatched_fields,
        )

    async def CloseSession(
        self, request: worker_pb2.WorkerServiceCloseSessionRequest, context: Context
    ) -> worker_pb2.WorkerServiceCloseSessionResponse:
        """Forget a session, here and in the store; one that nobody knows is no fault."""
        self._serving()
        if not request.session_key:
            raise InvalidRequest("session_key", "is empty")
        intake.check_key("session_key", request.session_key)
        intake.check_key("salt", request.salt)
        root = self._prefixes.root(request.salt)
        was_kept = await self._sessions.forget(root, request.session_key)
        was_stored = await self._prefixes.close_session(request.salt, request.session_key)
        return worker_pb2.WorkerServiceCloseSessionResponse(found=was_kept or was_stored)

    async def Flush(
        self, request: worker_pb2.WorkerServiceFlushRequest, context: Context
    ) -> worker_pb2.WorkerServiceFlushResponse:
        """Hand over again what the store lacks of the rows that are here."""
        self._serving()
        owed = await self.save_owed(to_seconds(request.timeout))
        lost, self._lost_told = self._lost_told, sum(dict(self._engine.counters.lost).values())
        return worker_pb2.WorkerServiceFlushResponse(owed=owed, lost=self._lost_told - lost)

    async def Embed(
        self, request: worker_pb2.WorkerServiceEmbedRequest, context: Context
    ) -> worker_pb2.WorkerServiceEmbedResponse:
        """Embed texts between others' steps; leaving the call ends it before its next forward."""
        logs.follow(context.invocation_metadata())
        loaded = self._serving()
        request.internal_id = request.internal_id or uuid.uuid4().hex
        logs.request_id.set(request.internal_id)
        embedding = Embedding(request, loaded.embedding, loaded.facts)
        job = await embedding.job(functools.partial(self._beside, loaded.tokenizer.encode))
        self._open([job], embedding)
        try:
            self._engine.embed(job)
            return await embedding.answer()
        finally:
            self._engine.cancel(job.id)  # an ended one is ignored
            self._close([job])

    async def LoadAdapter(
        self, request: worker_pb2.WorkerServiceLoadAdapterRequest, context: Context
    ) -> worker_pb2.WorkerServiceLoadAdapterResponse:
        """Refuse: this worker has no adapters."""
        raise Unsupported("adapters are not supported by this version")

    async def UnloadAdapter(
        self, request: worker_pb2.WorkerServiceUnloadAdapterRequest, context: Context
    ) -> worker_pb2.WorkerServiceUnloadAdapterResponse:
        """Refuse: this worker has no adapters."""
        raise Unsupported("adapters are not supported by this version")

    async def Drain(
        self, request: worker_pb2.WorkerServiceDrainRequest, context: Context
    ) -> worker_pb2.WorkerServiceDrainResponse:
        """Finish what runs, admit nothing more."""
        return worker_pb2.WorkerServiceDrainResponse(requests_finished=await self.drain())

    def _serving(self) -> Loaded:
        if self._board.state == types_pb2.MODEL_STATE_DRAINING:
            raise Draining("this worker finishes what it has", retry_after_s=1.0)
        if self._loaded is None:
            raise NotLoaded("the model is being loaded", reason="MODEL_LOADING", retry_after_s=1.0)
        return self._loaded

    async def _works(
        self, request: worker_pb2.WorkerServiceGenerateRequest, loaded: Loaded
    ) -> tuple[Sequence[Request], Shape]:
        """Check a request again, and make its sequences."""
        prompt = unpack_ids(request.prepared.token_ids_le)
        intake.check_fields(request.request, loaded.facts)
        limit = intake.check_tokens(request.request, prompt, loaded.facts)
        works = translate.to_requests(
            request, prompt, limit, loaded.facts, loaded.tokenizer.newline_ids
        )
        hints = request.request.cache
        if not (hints.skip_lookup or hints.skip_store):
            for work in works:
                work.scope = self._prefixes.root(hints.salt)
        asked = request.request
        shape = Shape(
            asked,
            prompt,
            tools=await self._beside(tools_of, asked) if asked.tools else (),
            compiled=await self._shaper.compile(asked),
            is_reasoning=request.prepared.is_reasoning,
        )
        for work in works:
            work.guide = self._shaper.guide(shape)
        return works, shape

    async def _use_store(
        self,
        work: Request,
        request: worker_pb2.WorkerServiceGenerateRequest,
        cached: types_pb2.CachedTokens,
    ) -> None:
        """Give the engine what is stored of the prompt, and where to save the rest."""
        hints, prepared = request.request.cache, request.prepared
        found = await self._find(work, hints, prepared.token_ids_le, prepared.block_hashes)
        if found is not None:
            work.restore = found.restore
            cached.CopyFrom(found.cached)
        if not hints.skip_store:
            work.saving = self._prefixes.saving(
                prepared.stable_tokens,
                found,
                self._prefixes.root(hints.salt),
                request.request.session_key,
            )

    async def _resume(self, hints: types_pb2.CacheHints, work: Request) -> None:
        """Submit a sequence that lost its seat again, with what is stored of it by now."""
        await self._prefixes.settled()
        token_ids_le = pack_ids([*work.prompt, *work.output])
        chains = keys.chain(self._prefixes.root(hints.salt), token_ids_le)
        found = await self._find(work, hints, token_ids_le, chains)
        if found is not None:
            work.restore = found.restore
            if work.saving is not None:
                work.saving.account.stored = found.restore.tokens
        self._engine.submit(work)

    async def _find(
        self, work: Request, hints: types_pb2.CacheHints, token_ids_le: bytes, chains: bytes
    ) -> Found | None:
        if hints.skip_lookup or work.wants_prompt_logprobs:
            return None
        root = self._prefixes.root(hints.salt)
        return await self._prefixes.find(root, chains, token_ids_le, self._board.prefill_rate)

    async def _as_generated(
        self, request: generation_pb2.GenerateRequest, plain: Sequence[int]
    ) -> Sequence[int]:
        """Take the ids of earlier answers for their text, unless that takes what room is left."""
        if request.WhichOneof("input") == "token_ids" or request.cache.skip_lookup:
            return plain
        root = self._prefixes.root(request.cache.salt)
        ids = await self._sessions.ids(root, request.session_key, plain, self._prefixes.recall)
        needed = len(ids) + max(request.stop.max_tokens, 1)
        more_room = needed <= self._serving().facts.context_tokens
        return ids if more_room or len(ids) <= len(plain) else plain

    def _keep(
        self,
        asked: worker_pb2.WorkerServiceGenerateRequest,
        stream: Stream,
        indexes: Sequence[int],
    ) -> None:
        request = asked.request
        if request.WhichOneof("input") == "token_ids" or request.cache.skip_store:
            return
        root = self._prefixes.root(request.cache.salt)
        prompt = unpack_ids(asked.prepared.token_ids_le)
        for index in indexes:
            if answer := stream.token_ids(index):
                self._sessions.keep(root, request.session_key, [*prompt, *answer])

    async def _stable_tokens(
        self, request: generation_pb2.GenerateRequest, ids: Sequence[int]
    ) -> int:
        if request.WhichOneof("input") != "chat":
            return len(ids)
        return await self._beside(self._boundary, self._serving(), request, ids)

    def _boundary(
        self, loaded: Loaded, request: generation_pb2.GenerateRequest, ids: Sequence[int]
    ) -> int:
        return self._boundaries.tokens(_conversation(request, loaded), ids)

    async def _bad_words(self, request: generation_pb2.GenerateRequest) -> Sequence[Sequence[int]]:
        words = request.stop.bad_words
        if not words:
            return ()
        return await self._beside(spellings, self._serving().tokenizer, words)

    async def _beside(self, work: Callable[[*_Args], _Made], *args: *_Args) -> _Made:
        """Do on the thread for texts what may take long."""
        return await asyncio.get_running_loop().run_in_executor(self._text, work, *args)

    def _open(
        self, works: Sequence[Request] | Sequence[EmbedJob], stream: Stream | Embedding
    ) -> None:
        if works[0].id in self._streams:
            raise AlreadyExists(f"request {works[0].id} runs already")
        self._streams.update({work.id: stream for work in works})
        self._idle.clear()
        self._board.changed()

    def _close(self, works: Sequence[Request] | Sequence[EmbedJob]) -> None:
        for work in works:
            del self._streams[work.id]
        if not self._streams:
            self._idle.set()
        self._board.changed()

    async def _tokenize(
        self, request: generation_pb2.GenerateRequest, characters_max: int | None = None
    ) -> Sequence[int]:
        loaded = self._serving()
        size = characters(request)
        if characters_max is None:
            intake.check_text(size, request.WhichOneof("input") or "input", loaded.facts)
        elif size > characters_max:
            raise InvalidRequest("input", f"{size} characters is over {characters_max}")
        match request.WhichOneof("input"):
            case "token_ids":
                return request.token_ids.ids
            case "text":
                return await self._beside(loaded.tokenizer.encode, request.text)
            case "chat":
                return await self._beside(_rendered, request, loaded)
            case None:
                raise InvalidRequest("input", "one of chat, text and token_ids must be set")


def _conversation(request: generation_pb2.GenerateRequest, loaded: Loaded) -> Conversation:
    reasons = bool(loaded.facts.reasoning_format)
    return conversation_of(request, loaded.tokenizer, reasons=reasons)


def _rendered(request: generation_pb2.GenerateRequest, loaded: Loaded) -> Sequence[int]:
    return _conversation(request, loaded).render(loaded.tokenizer)
