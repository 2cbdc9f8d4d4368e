"""Messages of the wire to the client's own values, and remote faults to errors."""

from collections.abc import Generator
from contextlib import contextmanager

import grpc

from bramley.client.cache import Explanation, Flushed
from bramley.client.cluster import Memory, Model, Process, Status
from bramley.client.events import (
    Accepted,
    Delta,
    Event,
    Finished,
    Progress,
    Started,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from bramley.common.status import RemoteError
from bramley.common.wire import to_seconds
from bramley.protos.v1 import generation_pb2, node_pb2, router_pb2, types_pb2


@contextmanager
def remote_errors() -> Generator[None]:
    """Raise what the other side answered with as RemoteError.

    Yields:
        Nothing.

    Raises:
        RemoteError: the call ended with a status that is not OK.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise RemoteError(error) from error


def event(response: router_pb2.GenerateResponse) -> Event | None:
    """Translate one message; None for a kind that this client does not know yet."""
    match response.WhichOneof("event"):
        case "accepted":
            accepted = response.accepted
            return Accepted(request_id=accepted.request_id, queue_position=accepted.queue_position)
        case "started":
            return _started(response.started)
        case "progress":
            progress = response.progress
            return Progress(
                done_tokens=progress.prompt_tokens_done, prompt_tokens=progress.prompt_tokens
            )
        case "delta":
            return _delta(response.delta)
        case "finished":
            return _finished(response.finished)
        case None:
            return None


def model(message: router_pb2.Model) -> Model:
    """Translate a model's state."""
    limits = message.limits if message.HasField("limits") else None
    is_ready = message.state == types_pb2.MODEL_STATE_READY
    return Model(
        name=message.name,
        state=_short(types_pb2.ModelState.Name(message.state), "MODEL_STATE_"),
        reason=message.reason,
        revision=message.revision,
        load_progress=1.0 if is_ready else round(message.load_progress, 2),
        context_tokens=limits.context_tokens if limits else None,
        max_rows=limits.max_rows if limits else None,
        has_chat_template=limits.has_chat_template if limits else None,
        requests_running=message.requests_running,
        requests_waiting=message.requests_waiting,
        pinned=message.pinned,
        memory_bytes=message.memory_bytes,
        reserved_bytes=message.reserved_bytes,
        needed_bytes=message.needed_bytes,
        idle_s=to_seconds(message.idle) if message.HasField("idle") else None,
        reasoning_format=limits.reasoning_format if limits else None,
        tool_format=limits.tool_format if limits else None,
    )


def status(message: router_pb2.GetStatusResponse) -> Status:
    """Translate the router's account of itself."""
    return Status(
        version=message.version,
        epoch=message.epoch,
        uptime_s=to_seconds(message.uptime),
        draining=message.draining,
        models=[model(each) for each in message.models],
        requests_running=message.requests_running,
        requests_waiting=message.requests_waiting,
        memory=_memory(message.memory) if message.HasField("memory") else None,
    )


def _memory(ledger: router_pb2.MemoryLedger) -> Memory:
    return Memory(
        budget_bytes=ledger.budget_bytes,
        store_bytes=ledger.store_bytes,
        reserved_bytes=ledger.reserved_bytes,
    )


def process(message: node_pb2.Process) -> Process:
    """Translate the state of one process."""
    return Process(
        role=message.role,
        name=message.name,
        pid=message.pid,
        state=_short(node_pb2.ProcessState.Name(message.state), "PROCESS_STATE_"),
        epoch=message.epoch,
        address=message.address,
        restarts=message.restarts,
        last_exit=message.last_exit,
    )


def aborted(message: router_pb2.AbortResponse) -> dict[str, bool]:
    """Translate the fate of each request that was to be ended."""
    done = router_pb2.AbortResponse.RESULT_ABORTED
    return {request_id: result == done for request_id, result in message.results.items()}


def flushed(message: router_pb2.FlushCacheResponse) -> Flushed:
    """Translate what a flush has done."""
    return Flushed(
        ok=message.ok,
        pending=message.pending,
        refused=message.refused,
        failed=message.failed,
        missing=message.missing,
        bytes=message.bytes,
        longest_prefix_tokens=message.longest_prefix_tokens,
    )


def explanation(message: router_pb2.ExplainCacheResponse) -> Explanation:
    """Translate why a prompt is stored as far as it is."""
    return Explanation(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=_by_tier(message.cached),
        explanation=message.explanation,
        first_differing_block=message.first_differing_block,
        mismatched_fields=list(message.mismatched_fields),
    )


def _started(started: generation_pb2.Started) -> Started:
    return Started(
        queue_s=to_seconds(started.queue_wait),
        prompt_tokens=started.prompt_tokens,
        cached_tokens=_by_tier(started.cached),
        worker=started.worker,
    )


def _delta(delta: generation_pb2.Delta) -> Delta:
    return Delta(
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        reasoning_text=delta.reasoning_text,
        tool_calls=tuple(map(_tool_call, delta.tool_calls)),
        completion_tokens=delta.completion_tokens,
        reasoning_tokens=delta.reasoning_tokens,
        index=delta.index,
        logprobs=_logprobs(delta.logprobs) if delta.HasField("logprobs") else (),
        prompt_logprobs=_logprobs(delta.prompt_logprobs)
        if delta.HasField("prompt_logprobs")
        else (),
    )


def _tool_call(part: types_pb2.ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(
        index=part.index,
        id=part.id,
        name=part.name,
        arguments=part.arguments_json,
        is_malformed=part.malformed,
        is_ended=part.ended,
    )


def _logprobs(packed: types_pb2.Logprobs) -> tuple[TokenLogprob, ...]:
    top = list(zip(packed.top_token_ids, packed.top_logprobs, strict=True))
    return tuple(
        TokenLogprob(
            token_id=token,
            logprob=logprob,
            top=dict(top[place * packed.top : (place + 1) * packed.top]),
        )
        for place, (token, logprob) in enumerate(
            zip(packed.token_ids, packed.logprobs, strict=True)
        )
    )


def _finished(finished: generation_pb2.Finished) -> Finished:
    match finished.WhichOneof("match"):
        case "stop_string":
            matched: str | int | None = finished.stop_string
        case "stop_token_id":
            matched = finished.stop_token_id
        case None:
            matched = None
    usage, timings = finished.usage, finished.timings
    return Finished(
        reason=_short(types_pb2.FinishReason.Name(finished.reason), "FINISH_REASON_"),
        matched=matched,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=_by_tier(usage.cached),
            reasoning_tokens=usage.reasoning_tokens,
        ),
        timings=Timings(
            queue_s=to_seconds(timings.queue),
            ttft_s=to_seconds(timings.ttft),
            total_s=to_seconds(timings.total),
            restore_s=to_seconds(timings.restore),
            prefill_s=to_seconds(timings.prefill),
            decode_s=to_seconds(timings.decode),
        ),
        index=finished.index,
    )


def _by_tier(cached: types_pb2.CachedTokens) -> dict[str, int]:
    return {"parked": cached.parked, "ram": cached.ram, "ssd": cached.ssd}


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()  # MODEL_STATE_READY is "ready"
