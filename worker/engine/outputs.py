"""What the engine tells about a request after a step: handed to the asyncio side.

Times are on the monotonic clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bramley.common.errors import BramleyError
from bramley.worker.engine.stopping import Finish


@dataclass(frozen=True, slots=True)
class Seated:
    """It has a seat; its prefill begins."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Prompt tokens computed so far; only for requests that asked."""

    request_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token, and the end if it was the last."""

    request_id: str
    token: int
    at_s: float
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It ended without a finish."""

    request_id: str
    error: BramleyError


Output = Seated | Prefilled | Token | Failed
Deliver = Callable[[Sequence[Output]], None]
