"""Settings of the router: where it listens, which models run, who waits for how long."""

from typing import Any

import msgspec

from bramley.router.classes import Classes, Positive, Seconds
from bramley.router.clients import ClientLimits


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor hands to its router.

    Attributes:
        grpc: where clients call; port 0 takes a free one.
        http: where Prometheus scrapes; port 0 takes a free one; empty for nowhere.
        node: gRPC target of the node's NodeService; empty in a router without one.
        models: settings of each model's workers, passed on as they are; all run.
        replicas: workers of a model, where there are more than one.
        classes: what each class of a model's requests gets.
        clients: what each client may ask, told apart by fairness key.
        running_max: requests of a model on one worker at a time, where not the worker's own limit.
        backlog_bytes: of one answer, kept for a client that does not read.
        drain_timeout_s: what a stopping router gives to running requests.
    """

    grpc: str = "127.0.0.1:7410"
    http: str = "127.0.0.1:7411"
    node: str = ""
    models: dict[str, dict[str, Any]] = {}
    replicas: dict[str, Positive] = {}
    classes: Classes = Classes()
    clients: ClientLimits = ClientLimits()
    running_max: dict[str, Positive] = {}
    backlog_bytes: Positive = 1 << 20
    drain_timeout_s: Seconds = 30.0
