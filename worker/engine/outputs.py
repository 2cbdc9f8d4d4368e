"""What the engine tells about a request after a step: handed to the asyncio side.

Times are on the monotonic clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bramley.common.errors import BramleyError
from bramley.worker.cache.saved import Saving, Staged
from bramley.worker.cache.snapshot import Span
from bramley.worker.engine.stopping import Finish
from bramley.worker.owed import Handed
from bramley.worker.request import Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class Seated:
    """It has a seat; its prefill begins after the tokens that need no computing.

    Attributes:
        restored: tokens from the cache store.
        restore_s: what copying them took.
        parked: tokens from a row of this engine.
    """

    request_id: str
    at_s: float
    restored: int = 0
    restore_s: float = 0.0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Prompt tokens computed so far; only for requests that asked."""

    request_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the whole prompt, once, before the first Token: entry i is for prompt token i + 1."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One token, and the end if it was the last."""

    request_id: str
    token: int
    at_s: float
    finish: Finish | None = None
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A span of its state lies in staging; the sequence's tokens up to the span's end name it.

    Attributes:
        request_id: empty where the request has ended and its row is parked.
        saving: says where it belongs.
        handed: what the row's account is told with the outcome.
    """

    request_id: str
    span: Span
    staged: Staged
    token_ids_le: bytes
    saving: Saving
    handed: Handed


@dataclass(frozen=True, slots=True)
class Preempted:
    """It lost its seat to another; submit it again, with what is stored of it by then."""

    request_id: str
    request: Request


@dataclass(frozen=True, slots=True)
class Embedded:
    """All texts of a job are done: the vector of each, float32, little-endian."""

    request_id: str
    values: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Failed:
    """It ended without a finish."""

    request_id: str
    error: BramleyError


Output = Seated | Prefilled | PromptLogprobs | Token | Saved | Preempted | Embedded | Failed
Deliver = Callable[[Sequence[Output]], None]
