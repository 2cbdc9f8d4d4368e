"""Before a flush: workers hand over what the cache store has refused or missed."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import grpc

from bramley.common.wire import to_duration
from bramley.protos.v1 import router_pb2, worker_pb2
from bramley.router.fleet import WorkerView

if TYPE_CHECKING:
    from bramley.protos.v1.worker_pb2_grpc import WorkerServiceAsyncStub

SHARE = 0.5  # of the call's time; the rest is the store's
WAIT_MAX_S = 30.0
ANSWER_S = 1.0  # beside the time that a worker is given


class Workers(Protocol):
    """The way to the workers."""

    def stub(self, view: WorkerView) -> "WorkerServiceAsyncStub":
        """Answer with the client of that ready incarnation."""
        ...


async def hand_over(
    workers: Workers, views: Sequence[WorkerView], remaining_s: float | None
) -> int:
    """Have workers save what they owe.

    Args:
        workers: the way to them.
        views: the ready ones that count.
        remaining_s: of the call; None for no bound.

    Returns:
        Conversations that are not stored: what is still owed, and what has been lost since the
        last time.
    """
    within_s = WAIT_MAX_S if remaining_s is None else min(remaining_s * SHARE, WAIT_MAX_S)
    answers = [_of_one(workers.stub(view), within_s) for view in views]
    return sum(await asyncio.gather(*answers))


async def _of_one(stub: "WorkerServiceAsyncStub", within_s: float) -> int:
    request = worker_pb2.WorkerServiceFlushRequest(timeout=to_duration(within_s))
    try:
        told = await stub.Flush(request, timeout=within_s + ANSWER_S)
    except grpc.aio.AioRpcError as error:
        # Who does not answer may owe; who is gone or about to go owes nothing any more.
        return int(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
    return told.owed + told.lost


def with_unsaved(
    answer: router_pb2.FlushCacheResponse, unsaved: int
) -> router_pb2.FlushCacheResponse:
    """Add what workers could not hand over; the store has refused some of it itself."""
    answer.ok = answer.ok and not unsaved
    answer.refused = max(answer.refused, unsaved)
    return answer
