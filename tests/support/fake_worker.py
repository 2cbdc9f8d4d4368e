"""A worker without a model: speaks WorkerService, and fails where its script says.

A prompt's tokens are its UTF-8 bytes. The answer's tokens are 0, 1, 2, ... with the texts
"0 ", "1 ", "2 ", ...: a test sees what was lost, doubled or reordered. As a process::

    python tests/support/fake_worker.py [--script FILE] --child JSON --settings FILE
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NoReturn

import grpc
import msgspec

from bramley.common import rpc
from bramley.common.child import Child, ChildContext
from bramley.common.errors import (
    ContextTooLong,
    DeviceOom,
    Draining,
    EngineFault,
    InvalidRequest,
    NotLoaded,
    Unsupported,
)
from bramley.common.ids import ModelName
from bramley.common.main import run_child
from bramley.common.wire import pack_ids, to_seconds, unpack_ids
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2, worker_pb2_grpc

# As a process its folder, not the one above, is the first of the path.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.fake_tokens import embed, token_ids
from support.script import Script, read

Context = grpc.aio.ServicerContext[Any, Any]
Responses = AsyncGenerator[worker_pb2.WorkerServiceGenerateResponse]
SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
PREFILL_CHUNKS = 4
DYING_S = 0.05  # what was written leaves the process first
REPORT_GAP_S = 0.02  # what changes meanwhile is one report: they are not for each request


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """The service.

    Args:
        model: its name.
        script: its part.
        die: what "die" does; a process ends.

    Attributes:
        prepared: callers' ids that Prepare saw.
        carried: metadata of each call of Prepare and of Generate.
        generated: internal ids that reached Generate.
        cancelled: internal ids whose caller left.
        hang_ups: calls of Prepare yet to end as if the transport had failed.
        watches: calls of WatchLoad so far.
        step_age_s: how long it says its engine has been inside one step.
        embedded: what reached Embed.
        closed: sessions that CloseSession named, with their salts.
        owed: rows that Flush says are not stored.
        flushes: seconds that each Flush was given.
        ignores_scripts: whether it does nothing that a script or a label asks of it any more.
        running: streams now; ``running_most`` is the most so far.
    """

    def __init__(self, model: str, script: Script, die: Callable[[], None]) -> None:
        self.model = ModelName(model)
        self._script = script
        self._die = die
        self._news = asyncio.Event()
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self.state = types_pb2.MODEL_STATE_STARTING
        self.progress = 0.0
        self.step_age_s = 0.0
        self.prepared: list[str] = []
        self.carried: list[Any] = []
        self.generated: list[str] = []
        self.cancelled: list[str] = []
        self.hang_ups = 0
        self.watches = 0
        self.embedded: list[worker_pb2.WorkerServiceEmbedRequest] = []
        self.closed: list[tuple[str, str]] = []
        self.owed = 0
        self.flushes: list[float] = []
        self.ignores_scripts = False
        self.running = 0
        self.running_most = 0

    async def load(self) -> None:
        """Pretend to load the model."""
        self.set_state(types_pb2.MODEL_STATE_LOADING)
        for tenth in range(10):
            self.progress = tenth / 10
            self._changed()
            await asyncio.sleep(self._script.load_s / 10 if self._script.load_s >= 0 else 3600)
        self.progress = 1.0
        self.set_state(types_pb2.MODEL_STATE_READY)

    def set_state(self, state: types_pb2.ModelState.ValueType) -> None:
        """Be in a state, and report it."""
        self.state = state
        self._changed()

    def mute(self) -> None:
        """Report nothing any more."""
        self._speaks.clear()

    def unmute(self) -> None:
        """Report again."""
        self._speaks.set()

    async def Prepare(
        self, request: worker_pb2.PrepareRequest, context: Context
    ) -> worker_pb2.PrepareResponse:
        """Tokenize and check."""
        self.carried.append(context.invocation_metadata() or ())
        if self.hang_ups:
            self.hang_ups -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "hung up")
        self._check_serving()
        asked = request.request
        script = self._script.for_request(asked.labels)
        self.prepared.append(asked.request_id)
        await self._act("prepare", script)
        kind = asked.WhichOneof("input") or "input"
        ids = token_ids(asked)
        if not ids:
            raise InvalidRequest(kind, "the prompt is empty")
        room = script.context_tokens - len(ids)
        wanted = asked.stop.max_tokens if asked.stop.HasField("max_tokens") else script.tokens
        if wanted < 1:
            raise InvalidRequest("stop.max_tokens", f"{wanted} is less than 1")
        if wanted > room:
            raise ContextTooLong(
                kind, prompt=len(ids), max_tokens=wanted, limit=script.context_tokens
            )
        return worker_pb2.PrepareResponse(
            token_ids_le=pack_ids(ids),
            block_hashes=_chain(asked),
            stable_tokens=len(ids),
            max_tokens=wanted,
        )

    async def Generate(
        self, request: worker_pb2.WorkerServiceGenerateRequest, context: Context
    ) -> Responses:
        """Stream the scripted answer."""
        self.carried.append(context.invocation_metadata() or ())
        self._check_serving()
        self.generated.append(request.internal_id)
        self.running += 1
        self.running_most = max(self.running, self.running_most)
        self._changed()
        script = self._script.for_request(request.request.labels)
        try:
            async for response in self._answer(request, script):
                yield response
        except _Ended as ended:
            if ended.finished:
                yield _finished(0, types_pb2.Usage(prompt_tokens=5), types_pb2.FINISH_REASON_STOP)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.internal_id)
            self.running += script.ignore_cancel
            raise
        finally:
            self.running -= 1
            self._changed()

    async def WatchLoad(
        self, request: worker_pb2.WatchLoadRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.WatchLoadResponse]:
        """Tell the load at each change and heartbeat."""
        self.watches += 1
        while True:
            await self._speaks.wait()
            news = self._news
            yield worker_pb2.WatchLoadResponse(load=self._load())
            await asyncio.sleep(REPORT_GAP_S)
            try:
                async with asyncio.timeout(self._script.heartbeat_s):
                    await news.wait()
            except TimeoutError:
                continue

    async def Info(
        self, request: worker_pb2.InfoRequest, context: Context
    ) -> worker_pb2.InfoResponse:
        """Tell the limits."""
        return worker_pb2.InfoResponse(
            model=self.model,
            limits=self._limits(),
            backend="fake",
            cache_roots=[root.encode() for root in self._script.cache_roots],
            cache_roots_cut=self._script.cache_roots_cut,
        )

    async def CloseSession(
        self, request: worker_pb2.WorkerServiceCloseSessionRequest, context: Context
    ) -> worker_pb2.WorkerServiceCloseSessionResponse:
        """Refuse a session without a name; know each other one once."""
        self._check_serving()
        if not request.session_key:
            raise InvalidRequest("session_key", "is empty")
        session = (request.session_key, request.salt)
        is_new = session not in self.closed
        self.closed.append(session)
        return worker_pb2.WorkerServiceCloseSessionResponse(found=is_new)

    async def Flush(
        self, request: worker_pb2.WorkerServiceFlushRequest, context: Context
    ) -> worker_pb2.WorkerServiceFlushResponse:
        """Say what is owed."""
        self.flushes.append(to_seconds(request.timeout))
        return worker_pb2.WorkerServiceFlushResponse(owed=self.owed)

    async def Explain(
        self, request: worker_pb2.WorkerServiceExplainRequest, context: Context
    ) -> worker_pb2.WorkerServiceExplainResponse:
        """Claim that half of the prompt is stored; say what was asked."""
        asked = request.request
        tokens = len(token_ids(asked))
        return worker_pb2.WorkerServiceExplainResponse(
            prompt_tokens=tokens,
            cached=types_pb2.CachedTokens(ssd=tokens // 2),
            explanation=f"adapter={asked.adapter} salt={asked.cache.salt}",
            first_differing_block=1,
            mismatched_fields=["salt"],
        )

    async def Detokenize(
        self, request: worker_pb2.WorkerServiceDetokenizeRequest, context: Context
    ) -> worker_pb2.WorkerServiceDetokenizeResponse:
        """Bytes to text."""
        ids = unpack_ids(request.token_ids_le)
        if any(token > 255 for token in ids):
            raise InvalidRequest("token_ids", "a token is outside the vocabulary")
        text = bytes(list(ids)).decode(errors="replace")
        return worker_pb2.WorkerServiceDetokenizeResponse(text=text)

    async def Embed(
        self, request: worker_pb2.WorkerServiceEmbedRequest, context: Context
    ) -> worker_pb2.WorkerServiceEmbedResponse:
        """Embed as support.fake_tokens does."""
        self.carried.append(context.invocation_metadata() or ())
        self._check_serving()
        self.embedded.append(request)
        self.running += 1
        self._changed()
        try:
            await self._act("accepted", self._script)
            return embed(request)
        except asyncio.CancelledError:
            self.cancelled.append(request.internal_id)
            raise
        finally:
            self.running -= 1
            self._changed()

    async def LoadAdapter(self, request: Any, context: Context) -> NoReturn:
        """Refuse."""
        raise Unsupported("a fake worker has no adapters")

    UnloadAdapter = LoadAdapter

    async def Drain(
        self, request: worker_pb2.WorkerServiceDrainRequest, context: Context
    ) -> worker_pb2.WorkerServiceDrainResponse:
        """Finish what runs."""
        finished = self.running
        self.set_state(types_pb2.MODEL_STATE_DRAINING)
        while self.running:
            await self._news.wait()
        return worker_pb2.WorkerServiceDrainResponse(requests_finished=finished)

    async def _answer(
        self, request: worker_pb2.WorkerServiceGenerateRequest, script: Script
    ) -> Responses:
        await self._act("accepted", script)
        prompt = unpack_ids(request.prepared.token_ids_le)
        self._prompt_tokens += len(prompt)
        yield worker_pb2.WorkerServiceGenerateResponse(
            started=generation_pb2.Started(prompt_tokens=len(prompt))
        )
        await self._act("started", script)
        async for response in self._prefill(request.request, len(prompt), script):
            yield response
        async for response in self._decode(request, script):
            yield response

    async def _prefill(
        self, request: generation_pb2.GenerateRequest, prompt_tokens: int, script: Script
    ) -> Responses:
        for chunk in range(PREFILL_CHUNKS if script.prefill_s else 0):
            await asyncio.sleep(script.prefill_s / PREFILL_CHUNKS)
            if request.stream.progress:
                done = prompt_tokens * (chunk + 1) // PREFILL_CHUNKS
                yield worker_pb2.WorkerServiceGenerateResponse(
                    progress=generation_pb2.Progress(
                        prompt_tokens_done=done, prompt_tokens=prompt_tokens
                    )
                )

    async def _decode(
        self, request: worker_pb2.WorkerServiceGenerateRequest, script: Script
    ) -> Responses:
        prompt = unpack_ids(request.prepared.token_ids_le)
        texts = list(bytes(list(prompt)).decode()) if script.echo else None
        total = min(request.prepared.max_tokens, len(texts) if texts else sys.maxsize)
        start_s, sent = time.monotonic(), 0
        while sent < total:
            due = sent + 1
            if script.interval_s:  # what fell due while the last message was under way goes along
                await asyncio.sleep(start_s + due * script.interval_s - time.monotonic())
                due = max(due, int((time.monotonic() - start_s) / script.interval_s))
            due = min(due, total)
            numbers = range(sent, due)
            self._steps += 1
            self._completion_tokens += len(numbers)
            said = [texts[n] if texts else f"{n} " for n in numbers]
            delta = script.delta(numbers, said, total)
            if request.request.HasField("logprobs"):
                delta.logprobs.token_ids.extend(numbers)
                delta.logprobs.logprobs.extend(-float(n) for n in numbers)
                if request.request.logprobs.bytes:
                    delta.logprobs.token_bytes.extend(f"{n} ".encode() for n in numbers)
            for index in range(max(request.request.n, 1)):
                delta.index = index
                yield worker_pb2.WorkerServiceGenerateResponse(delta=delta)
            if sent <= total // 2 < due:
                await self._act("delta", script)
            sent = due
        reasoned = min(script.reasons, total)
        usage = types_pb2.Usage(
            prompt_tokens=len(prompt), completion_tokens=total, reasoning_tokens=reasoned
        )
        called, cut = types_pb2.FINISH_REASON_TOOL_CALLS, types_pb2.FINISH_REASON_LENGTH
        for index in range(max(request.request.n, 1)):
            yield _finished(index, usage, called if script.calls else cut)

    async def _act(self, point: str, script: Script) -> None:
        for action, where in script.actions.items():
            if where != point or self.ignores_scripts:
                continue
            match action:
                case "die":
                    await asyncio.sleep(DYING_S)
                    self._die()
                    await asyncio.sleep(3600)
                case "stall":
                    await asyncio.sleep(3600)
                case "sigstop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "block":
                    time.sleep(3600)  # noqa: ASYNC251  blocking the loop is the point
                case _:
                    raise _failure(action)

    def _check_serving(self) -> None:
        if self.state == types_pb2.MODEL_STATE_DRAINING:
            raise Draining("this worker finishes what it has", retry_after_s=1.0)
        if self.state != types_pb2.MODEL_STATE_READY:
            raise NotLoaded("the model is being loaded", reason="MODEL_LOADING")

    def _load(self) -> worker_pb2.Load:
        is_ready = self.state == types_pb2.MODEL_STATE_READY
        return worker_pb2.Load(
            state=self.state,
            load_progress=self.progress,
            steps=self._steps,
            requests_running=self.running,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            limits=self._limits() if is_ready else None,
            revision=self._script.revision if is_ready else "",
            row_chains=map(hash_of, self._script.row_chains),
            memory_bytes=self._script.memory_bytes,
            step_age_s=self.step_age_s,
            prefill_rate=self._script.prefill_rate,
        )

    def _limits(self) -> types_pb2.ModelLimits:
        return types_pb2.ModelLimits(
            context_tokens=self._script.context_tokens,
            vocabulary=256,
            max_rows=self._script.max_rows,
            token_bytes=self._script.token_bytes,
            lane=types_pb2.LANE_BATCHED,
            has_chat_template=True,
            tool_format="json_tools",
        )

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _failure(action: str) -> Exception:
    match action:
        case "oom":
            return DeviceOom("no memory for this request", facts={"needed": 1 << 40})
        case "fault":
            return EngineFault("the sampler met a NaN")
        case "end" | "finish":
            return _Ended(finished=action == "finish")
        case _:
            return InvalidRequest("sampling.top_p", "2.0 is not within 0 and 1")


def hash_of(text: str) -> bytes:
    """The hash of a block, as tests write it."""
    return text.encode().ljust(32, b".")


def _chain(request: generation_pb2.GenerateRequest) -> bytes:
    """The hashes that the request's label names, one a word."""
    return b"".join(map(hash_of, request.labels.get("blocks", "").split()))


class _Ended(Exception):
    """The stream ends well, with a Finished or without."""

    def __init__(self, *, finished: bool = False) -> None:
        super().__init__()
        self.finished = finished


def _finished(
    index: int, usage: types_pb2.Usage, reason: types_pb2.FinishReason.ValueType
) -> worker_pb2.WorkerServiceGenerateResponse:
    return worker_pb2.WorkerServiceGenerateResponse(
        finished=generation_pb2.Finished(
            index=index, reason=reason, usage=usage, lane=types_pb2.LANE_BATCHED
        )
    )


async def start(worker: FakeWorker, address: str) -> grpc.aio.Server:
    """Serve ``worker`` at ``address``; the caller loads it and stops the server."""
    server = rpc.new_server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
    rpc.add_health(server)
    rpc.add_reflection(server, [SERVICE])
    rpc.bind(server, address)
    await server.start()
    return server


async def run(context: ChildContext, script: Script) -> None:
    """Be a worker process until told to stop."""
    child = Child(context)
    worker = FakeWorker(context.name, script, lambda: os._exit(70))
    server = await start(worker, context.socket)
    child.ready({"socket": context.socket})
    loading = asyncio.create_task(worker.load())
    if script.exit_after_s:
        asyncio.get_running_loop().call_later(script.exit_after_s, os._exit, 71)
    await child.until_stopped()
    loading.cancel()
    await server.stop(0.5)


class AnySettings(msgspec.Struct):
    """A worker's settings, which say nothing to a fake one."""


def main() -> int:
    """Run as the script says: the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", type=Path)
    arguments, rest = parser.parse_known_args()
    script = read(arguments.script)
    if script.exit_code >= 0:
        return script.exit_code

    async def serve(context: ChildContext, _: AnySettings) -> None:
        await run(context, script)

    return run_child("worker", AnySettings, serve, rest)


if __name__ == "__main__":
    sys.exit(main())
