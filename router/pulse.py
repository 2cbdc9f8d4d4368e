"""Twice a second: how late the event loop is, and what changes without an event."""

import asyncio
from collections.abc import Callable
from time import monotonic

from prometheus_client import Histogram

EVERY_S = 0.5


async def beat(lag: Histogram, show: Callable[[], None]) -> None:
    """Sample until cancelled.

    Args:
        lag: takes how late each sample was.
        show: sets the metrics that only time changes.
    """
    while True:
        due_s = monotonic() + EVERY_S
        await asyncio.sleep(EVERY_S)
        lag.observe(max(monotonic() - due_s, 0.0))
        show()
