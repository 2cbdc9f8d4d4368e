"""What may be tried again: failures of workers, and the requests that cause them."""

import copy
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import grpc

from bramley.common.errors import BramleyError, DeviceOom, Draining, PoisonRequest
from bramley.common.status import RemoteError, details_trailers
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gate import Place
from bramley.router.metrics import ModelMetrics
from bramley.router.replicas import Seat
from bramley.router.retries import DEATHS_MAX, TRIES_MAX, RetryBudget, Suspects

Reason = Literal["worker_lost", "cut_short", "draining", "device_oom", "preempted"]
Request = generation_pb2.GenerateRequest | router_pb2.EmbedRequest
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Whether the transport failed, rather than the worker answering with an error."""
    return error.code() in _LOST and not details_trailers(error)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker did not answer, where another one might.

    Attributes:
        error: that the client is told if none is tried.
    """

    reason: Reason
    error: BaseException

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError, told: BaseException) -> "Failure | None":
        """Tell what kind a worker's error is; None if every worker would say the same."""
        if is_lost(error):
            return cls("worker_lost", told)
        reason = RemoteError(error).reason
        if reason == Draining.default_reason:
            return cls("draining", told)
        return cls("device_oom", told) if reason == DeviceOom.default_reason else None


PREEMPTED = Failure("preempted", BramleyError("a more urgent request took its place"))


class Retries:
    """What all requests of a router share: a budget, and what was learned of bad ones."""

    def __init__(self) -> None:
        self._budget = RetryBudget()
        self._suspects = Suspects()

    def attempt(self, request: Request) -> "Attempt":
        """Begin with a request.

        Returns:
            Its tries.

        Raises:
            PoisonRequest: workers died under it, and it gets no other.
        """
        self._budget.earn()
        attempt = Attempt(request, self._budget, self._suspects)
        attempt.refuse_if_poison()
        return attempt


class Attempt:
    """One request's tries."""

    def __init__(
        self,
        request: Request,
        budget: RetryBudget,
        suspects: Suspects,
    ) -> None:
        self._request = request
        self._budget = budget
        self._suspects = suspects
        self._tries = 1
        self._is_budget_spent = False  # whether that alone kept it from being tried again
        self._known_digest = b""

    @property
    def _digest(self) -> bytes:
        """Names what is asked, not who asks; made only where something is suspected."""
        if not self._known_digest:
            asked = copy.deepcopy(self._request)
            asked.ClearField("request_id")
            content = asked.SerializeToString(deterministic=True)
            self._known_digest = hashlib.sha256(content).digest()
        return self._known_digest

    @property
    def _deaths(self) -> int:
        now_s = monotonic()
        return self._suspects.deaths(self._digest, now_s) if self._suspects.has_any(now_s) else 0

    def refuse_if_poison(self) -> None:
        """Raise, if workers keep dying under it.

        Raises:
            PoisonRequest: they do.
        """
        if (deaths := self._deaths) >= DEATHS_MAX:
            raise PoisonRequest(
                f"{deaths} workers died under this request; it is given to no other for a while",
                facts={"deaths": deaths},
            )

    @asynccontextmanager
    async def alone(
        self, turn: Callable[[], AbstractAsyncContextManager[None]]
    ) -> AsyncGenerator[None]:
        """Let a suspect run beside no other suspect: if a worker dies again, it was this one.

        Args:
            turn: of the suspects; a block that one at a time is in.

        Yields:
            Once it may run.
        """
        if not self._deaths:
            yield
            return
        async with turn():
            self.refuse_if_poison()
            yield

    def _died(self, worker: str) -> None:
        """Note that an incarnation of a worker died under it.

        Raises:
            PoisonRequest: it is the second one.
        """
        self._suspects.died(self._digest, worker, monotonic())
        self.refuse_if_poison()

    def failed(
        self,
        failure: Failure,
        place: Place,
        seat: Seat,
        metrics: ModelMetrics,
        *,
        has_begun: bool = False,
    ) -> None:
        """Give a seat back for another try.

        Args:
            failure: why there was no answer, or no whole one.
            place: in the model's line.
            seat: that was had.
            metrics: of the model.
            has_begun: whether the client was told some of the answer.

        Raises:
            BaseException: the failure's own error, where no other worker may be tried.
        """
        if failure.reason != "draining":
            seat.failed(monotonic())
        if failure.reason == "worker_lost":
            self._died(seat.view.incarnation)
        is_new = failure.reason != "device_oom" or place.has_other(seat.view)
        if has_begun or not is_new or not self._may_retry(failure):
            if self._is_budget_spent:
                metrics.retries_spent.inc()
            raise failure.error
        metrics.retries[failure.reason].inc()
        place.failed(seat.view)

    def ended_well(self) -> None:
        """Note that it is none of those that kill."""
        if self._deaths:
            self._suspects.cleared(self._digest)

    def _may_retry(self, failure: Failure) -> bool:
        """Whether it may be tried again; a draining worker's word costs nothing."""
        if self._tries >= TRIES_MAX:
            return False
        self._tries += 1
        self._is_budget_spent = failure.reason != "draining" and not self._budget.spend()
        return not self._is_budget_spent
