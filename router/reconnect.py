"""Tries a stream again and again, with longer and longer waits while it brings nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from bramley.common.logs import facts

log = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 1.0


class Backoff:
    """The waits between tries."""

    def __init__(self) -> None:
        self._wait_s = BACKOFF_MIN_S

    def reset(self) -> None:
        """It brought something: begin with short waits."""
        self._wait_s = BACKOFF_MIN_S

    def next_s(self) -> float:
        """How long to wait this time."""
        wait_s, self._wait_s = self._wait_s, min(self._wait_s * 2, BACKOFF_MAX_S)
        return wait_s


async def again_and_again(what: str, attempt: Callable[[Backoff], Awaitable[None]]) -> None:
    """Begin an attempt whenever the last one has ended; only cancelling ends it."""
    backoff = Backoff()
    while True:
        problem = "the stream ended"
        try:
            await attempt(backoff)
        except grpc.aio.AioRpcError as error:
            problem = f"{error.code().name}: {error.details()}"
        except TimeoutError:
            problem = "silent for too long"
        wait_s = backoff.next_s()
        log.debug("lost %s", what, extra=facts(problem=problem, wait_s=wait_s))
        await asyncio.sleep(wait_s)
