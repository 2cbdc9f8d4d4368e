"""Ends the process when the engine's thread hangs inside a step: its supervisor starts another."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

EXIT_ENGINE_STALLED = 71
LOOKS = 8  # how often it looks within the time that a step may take


class Progress(Protocol):
    """What tells of the engine's steps."""

    step_began_s: float


def watch(
    progress: Progress,
    limit_s: float,
    over: threading.Event,
    give_up: Callable[[], None] | None = None,
) -> None:
    """Look after the engine from a thread of its own.

    Args:
        progress: of the engine; its time is on the monotonic clock, and 0 while no step runs.
        limit_s: what a step may take.
        over: set when the engine has ended.
        give_up: ends the process, unless told otherwise.
    """

    def look() -> None:
        while not over.wait(limit_s / LOOKS):
            began_s = progress.step_began_s
            if began_s and time.monotonic() - began_s > limit_s:
                log.critical("the engine has been inside one step for over %.0f s", limit_s)
                (give_up or _leave)()
                return

    threading.Thread(target=look, name="watchdog", daemon=True).start()


def _leave() -> None:
    logging.shutdown()
    os._exit(EXIT_ENGINE_STALLED)
