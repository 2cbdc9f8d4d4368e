"""Whether this router should be sent requests, and if not, what is in the way (pure)."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from bramley.common.ids import ModelName
from bramley.router.policy import Load

Status = Literal["ready", "draining", "failed", "loading", "exhausted"]
SERVING = ("READY", "DEGRADED")
ASLEEP = ("UNLOADED", "DRAINING")


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        state: as clients are told: "READY", "LOADING", ...
        reason: why, where the state is FAILED.
        load: when it is loaded, by the settings; those that are at the start are waited for.
        progress: of its load, 0 to 1.
        running: requests with a place on a worker.
        waiting: requests without one.
        full: whether a request of class "default" would be refused, as too many wait.
    """

    state: str
    reason: str = ""
    load: Load = "start"
    progress: float = 0.0
    running: int = 0
    waiting: int = 0
    full: bool = False

    @property
    def is_serving(self) -> bool:
        """Whether its requests find a worker."""
        return self.state in SERVING

    @property
    def is_awaited(self) -> bool:
        """Whether it is to be ready before requests are sent here."""
        # One that was unloaded, or has found no room yet, is loaded by its next request: were it
        # waited for, none would ever be sent.
        return self.load == "start" and self.state not in ASLEEP


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/readyz``."""

    ready: bool
    status: Status
    models: dict[ModelName, ModelReport]


def readiness(models: dict[ModelName, ModelReport], *, is_draining: bool) -> Readiness:
    """Judge the router as a whole."""
    status = "draining" if is_draining else _status(list(models.values()))
    return Readiness(ready=status == "ready", status=status, models=models)


def _status(models: Sequence[ModelReport]) -> Status:
    missing = [one for one in models if one.is_awaited and not one.is_serving]
    if any(one.state == "FAILED" for one in missing):
        return "failed"
    if missing:
        return "loading"
    serving = [one for one in models if one.is_serving]
    return "exhausted" if serving and all(one.full for one in serving) else "ready"
