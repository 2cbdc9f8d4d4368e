"""A router that plays a script: RouterService and NodeService on real sockets, in threads."""

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec
from google.protobuf.duration_pb2 import Duration
from typing_extensions import override

from bramley.common.errors import BramleyError, UnknownResource
from bramley.common.rpc import SERVER_OPTIONS
from bramley.common.status import to_status
from bramley.protos.v1 import generation_pb2, node_pb2, node_pb2_grpc, router_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import (
    RouterServiceServicer,
    add_RouterServiceServicer_to_server,
)

MODEL = "fake"
Context = grpc.ServicerContext


class Hold:
    """In a script: send nothing more until the client has left."""


class Vanish:
    """In a script: hang up as a process that was killed."""


Step = router_pb2.GenerateResponse | BramleyError | Hold | Vanish


def answer(*texts: str, prompt_tokens: int = 5) -> list[Step]:
    """Script a whole good answer: a Delta of one token for each text."""
    steps: list[Step] = [
        router_pb2.GenerateResponse(accepted=generation_pb2.Accepted(request_id="r-1")),
        router_pb2.GenerateResponse(
            started=generation_pb2.Started(prompt_tokens=prompt_tokens, worker=MODEL)
        ),
    ]
    for position, text in enumerate(texts):
        delta = generation_pb2.Delta(
            seq_no=position, token_ids=[100 + position], text=text, completion_tokens=position + 1
        )
        steps.append(router_pb2.GenerateResponse(delta=delta))
    finished = generation_pb2.Finished(
        reason=types_pb2.FINISH_REASON_STOP,
        stop_token_id=2,
        usage=types_pb2.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=len(texts),
            cached=types_pb2.CachedTokens(parked=1, ram=2),
        ),
        timings=types_pb2.Timings(
            queue=Duration(nanos=250_000_000),
            ttft=Duration(nanos=500_000_000),
            total=Duration(seconds=1, nanos=500_000_000),
        ),
    )
    return [*steps, router_pb2.GenerateResponse(finished=finished)]


def told(
    *deltas: generation_pb2.Delta,
    reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_STOP,
) -> list[Step]:
    """Script an answer of these Deltas."""
    finished = generation_pb2.Finished(
        reason=reason,
        usage=types_pb2.Usage(prompt_tokens=5, completion_tokens=9, reasoning_tokens=4),
    )
    steps = answer()[:2]
    steps += [router_pb2.GenerateResponse(delta=delta) for delta in deltas]
    return [*steps, router_pb2.GenerateResponse(finished=finished)]


def answers(*texts: str) -> list[Step]:
    """Script one answer for each text, of a token a character, in turns, with logprobs."""
    steps = answer()[:2]
    for position in range(max(map(len, texts))):
        for index, text in enumerate(texts):
            if position >= len(text):
                continue
            delta = generation_pb2.Delta(
                index=index,
                token_ids=[ord(text[position])],
                text=text[position],
                completion_tokens=position + 1,
                logprobs=types_pb2.Logprobs(
                    token_ids=[ord(text[position])],
                    logprobs=[-position],
                    top=2,
                    top_token_ids=[1, 2],
                    top_logprobs=[-0.5, -1.5],
                ),
            )
            if not position and not index:
                delta.prompt_logprobs.CopyFrom(types_pb2.Logprobs(token_ids=[9], logprobs=[-3]))
            steps.append(router_pb2.GenerateResponse(delta=delta))
    for index, text in enumerate(texts):
        finished = generation_pb2.Finished(
            index=index,
            reason=types_pb2.FINISH_REASON_LENGTH,
            usage=types_pb2.Usage(prompt_tokens=5, completion_tokens=len(text)),
        )
        steps.append(router_pb2.GenerateResponse(finished=finished))
    return steps


def ready_model() -> router_pb2.Model:
    """Describe a model that serves."""
    return router_pb2.Model(
        name=MODEL,
        state=types_pb2.MODEL_STATE_READY,
        revision="abc",
        load_progress=1.0,
        memory_bytes=1 << 20,
        reserved_bytes=3 << 20,
        needed_bytes=5 << 20,
        idle=Duration(seconds=1, nanos=500_000_000),
        limits=types_pb2.ModelLimits(
            context_tokens=2048,
            max_rows=8,
            has_chat_template=True,
            tool_format="json_tools",
        ),
    )


class FakeRouter(RouterServiceServicer):
    """Plays ``script`` for each Generate and remembers what it was asked.

    Attributes:
        node: the node that is served beside it.
        cancelled: set when a client left before the end of its script.
        loading: what GetModel tells first, one a call, before ``model``; LoadModel tells all.
        refusal: of what would change a model.
    """

    def __init__(self) -> None:
        self.node: FakeNode
        self.script: Sequence[Step] = answer("Hel", "lo")
        self.model = ready_model()
        self.loading: list[router_pb2.Model] = []
        self.refusal: BramleyError | None = None
        self.ledger: router_pb2.MemoryLedger | None = router_pb2.MemoryLedger(
            budget_bytes=6 << 30, store_bytes=1 << 30, reserved_bytes=3 << 20
        )
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.loads: list[router_pb2.LoadModelRequest] = []
        self.unloads: list[router_pb2.UnloadModelRequest] = []
        self.explained: list[router_pb2.ExplainCacheRequest] = []
        self.closed: list[router_pb2.CloseSessionRequest] = []
        self.flushed = router_pb2.FlushCacheResponse(
            ok=True, bytes=3 << 20, longest_prefix_tokens=512
        )
        self.time_remaining_s: float | None = None
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    @override
    def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> Iterator[router_pb2.GenerateResponse]:
        self.requests.append(request)
        self.asked.set()
        self.time_remaining_s = context.time_remaining()
        left, played = threading.Event(), threading.Event()

        def ended() -> None:
            left.set()
            if not played.is_set():
                self.cancelled.set()

        context.add_callback(ended)
        for step in self.script:
            if isinstance(step, BramleyError):
                played.set()
                context.abort_with_status(to_status(step))
            elif isinstance(step, Vanish):
                played.set()
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")  # gRPC's own words
            elif isinstance(step, Hold):
                left.wait(10)
                return
            else:
                yield step
        played.set()

    @override
    def ListModels(
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        return router_pb2.ListModelsResponse(models=[self.model])

    @override
    def GetModel(
        self, request: router_pb2.GetModelRequest, context: Context
    ) -> router_pb2.GetModelResponse:
        if request.model != self.model.name:
            context.abort_with_status(to_status(UnknownResource("model", request.model)))
        model = self.loading.pop(0) if self.loading else self.model
        return router_pb2.GetModelResponse(model=model)

    @override
    def Tokenize(
        self, request: router_pb2.TokenizeRequest, context: Context
    ) -> router_pb2.TokenizeResponse:
        text = request.text or "".join(turn.content for turn in request.chat.messages)
        return router_pb2.TokenizeResponse(token_ids=text.encode())

    @override
    def Embed(self, request: router_pb2.EmbedRequest, context: Context) -> router_pb2.EmbedResponse:
        answer = router_pb2.EmbedResponse()
        for text in request.texts:
            answer.embeddings.add(values_le=bytes(8), prompt_tokens=len(text))
        return answer

    @override
    def Detokenize(
        self, request: router_pb2.DetokenizeRequest, context: Context
    ) -> router_pb2.DetokenizeResponse:
        return router_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode())

    @override
    def GetStatus(
        self, request: router_pb2.GetStatusRequest, context: Context
    ) -> router_pb2.GetStatusResponse:
        return router_pb2.GetStatusResponse(
            version="1.2.3",
            epoch=7,
            uptime=Duration(seconds=60),
            models=[self.model],
            memory=self.ledger,
        )

    def _check(self, model: str, context: Context) -> None:
        known = self.model.name == model
        error = self.refusal if known else UnknownResource("model", model)
        if error is not None:
            context.abort_with_status(to_status(error))

    @override
    def LoadModel(
        self, request: router_pb2.LoadModelRequest, context: Context
    ) -> Iterator[router_pb2.LoadModelResponse]:
        self.loads.append(request)
        self._check(request.model, context)
        for model in (*self.loading, self.model):
            yield router_pb2.LoadModelResponse(model=model)

    @override
    def UnloadModel(
        self, request: router_pb2.UnloadModelRequest, context: Context
    ) -> router_pb2.UnloadModelResponse:
        self.unloads.append(request)
        self._check(request.model, context)
        return router_pb2.UnloadModelResponse()

    @override
    def PinModel(
        self, request: router_pb2.PinModelRequest, context: Context
    ) -> router_pb2.PinModelResponse:
        self._check(request.model, context)
        self.model.pinned = request.pinned
        return router_pb2.PinModelResponse(model=self.model)

    @override
    def Drain(self, request: router_pb2.DrainRequest, context: Context) -> router_pb2.DrainResponse:
        return router_pb2.DrainResponse(requests_finished=3)

    @override
    def Abort(self, request: router_pb2.AbortRequest, context: Context) -> router_pb2.AbortResponse:
        aborted = router_pb2.AbortResponse.RESULT_ABORTED
        unknown = router_pb2.AbortResponse.RESULT_NOT_FOUND
        results = {each: aborted if each == "r-1" else unknown for each in request.request_ids}
        return router_pb2.AbortResponse(results=results)

    @override
    def FlushCache(
        self, request: router_pb2.FlushCacheRequest, context: Context
    ) -> router_pb2.FlushCacheResponse:
        if request.model not in {"", self.model.name}:
            context.abort_with_status(to_status(UnknownResource("model", request.model)))
        return self.flushed

    @override
    def CloseSession(
        self, request: router_pb2.CloseSessionRequest, context: Context
    ) -> router_pb2.CloseSessionResponse:
        self.closed.append(request)
        return router_pb2.CloseSessionResponse(found=len(self.closed) == 1)

    @override
    def ExplainCache(
        self, request: router_pb2.ExplainCacheRequest, context: Context
    ) -> router_pb2.ExplainCacheResponse:
        self.explained.append(request)
        return router_pb2.ExplainCacheResponse(
            prompt_tokens=300,
            cached=types_pb2.CachedTokens(ram=256),
            explanation="block 1 is the first that differs",
            first_differing_block=1,
            mismatched_fields=["salt"],
        )


class FakeNode(node_pb2_grpc.NodeServiceServicer):
    """Tells of one router process, and of a store at ``store``, if that is set.

    Attributes:
        changed: what a reload finds; an error if it refuses.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self.changed: list[str] | BramleyError = []

    @override
    def Reload(self, request: node_pb2.ReloadRequest, context: Context) -> node_pb2.ReloadResponse:
        if isinstance(self.changed, BramleyError):
            context.abort_with_status(to_status(self.changed))
        return node_pb2.ReloadResponse(changed=self.changed)

    @override
    def Watch(
        self, request: node_pb2.WatchRequest, context: Context
    ) -> Iterator[node_pb2.WatchResponse]:
        process = node_pb2.Process(
            role="router",
            name="router",
            pid=4242,
            state=node_pb2.PROCESS_STATE_RUNNING,
            epoch=3,
            address="unix:/r.sock",
            restarts=1,
            last_exit="signal SIGKILL",
        )
        processes = [process]
        if self._store:
            running = node_pb2.PROCESS_STATE_RUNNING
            processes.append(
                node_pb2.Process(role="store", name="store", state=running, address=self._store)
            )
        yield node_pb2.WatchResponse(epoch=9, processes=processes)
        left = threading.Event()
        context.add_callback(left.set)
        left.wait(10)


@contextmanager
def serving(store: str = "") -> Generator[tuple[FakeRouter, str]]:
    """Serve a FakeRouter and a FakeNode with a store there; what they lack is UNIMPLEMENTED.

    Yields:
        The router, and the gRPC target of both.
    """
    router = FakeRouter()  # pyright: ignore[reportAbstractUsage]
    router.node = node = FakeNode(store)  # pyright: ignore[reportAbstractUsage]
    server = grpc.server(ThreadPoolExecutor(8), options=SERVER_OPTIONS)
    add_RouterServiceServicer_to_server(router, server)
    node_pb2_grpc.add_NodeServiceServicer_to_server(node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield router, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def write_state(state_dir: Path, *, router: str, node: str) -> None:
    """Write the ``node.json`` of a cluster at these targets."""
    content = {
        "run_dir": str(state_dir / "run"),
        "node": node,
        "addresses": {"grpc": router, "http": "127.0.0.1:9", "socket": router},
        "pid": 1,
        "epoch": 9,
    }
    state_dir.mkdir(parents=True, exist_ok=True)
    (state_dir / "epoch").write_text("9")
    (state_dir / "node.json").write_bytes(msgspec.json.encode(content))
