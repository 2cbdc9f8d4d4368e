"""Chooses what becomes of traces, by the settings, and ends it in good order."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bramley.common.errors import SettingsError
from bramley.router.tracing import Passing, TraceSettings, Tracing

CLOSE_S = 2.0


@asynccontextmanager
async def tracing(settings: TraceSettings) -> AsyncGenerator[Tracing]:
    """Have traces go where the settings say, for the length of the block.

    Yields:
        What takes them; at the end it sends what it has, as far as it is taken in time.

    Raises:
        SettingsError: the extra is not installed.
    """
    made = _made(settings)
    try:
        yield made
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.to_thread(made.close)


def _made(settings: TraceSettings) -> Tracing:
    if not settings.endpoint:
        return Passing()
    try:
        from bramley.router import otel  # noqa: PLC0415  the extra
    except ImportError as error:
        problem = f"takes the extra: pip install 'bramley[otel]' ({error})"
        raise SettingsError("router.traces.endpoint", problem) from error
    return otel.exporting(settings.endpoint, settings.sample)
