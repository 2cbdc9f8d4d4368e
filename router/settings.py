"""Settings of the router: where it listens, which models run, how long requests may wait."""

from typing import Annotated, Any

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor hands to its router.

    Attributes:
        grpc: where clients call; port 0 takes a free one.
        http: where Prometheus scrapes; port 0 takes a free one; empty for nowhere.
        node: gRPC target of the node's NodeService; empty in a router without one.
        models: settings of each model's worker, passed on as they are; all run.
        queue_max: requests of one model that may wait.
        queue_timeout_s: longest wait for a place on a worker; a request may ask for less.
        running_max: requests of a model on its worker at a time, where not the worker's own limit.
        drain_timeout_s: what a stopping router gives to running requests.
    """

    grpc: str = "127.0.0.1:7410"
    http: str = "127.0.0.1:7411"
    node: str = ""
    models: dict[str, dict[str, Any]] = {}
    queue_max: Positive = 256
    queue_timeout_s: Seconds = 60.0
    running_max: dict[str, Positive] = {}
    drain_timeout_s: Seconds = 30.0
