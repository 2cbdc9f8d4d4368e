"""What the router and the supervisor tell of themselves, as plain values."""

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the cluster.

    Attributes:
        state: "unloaded", "starting", "loading", "warming", "ready", "degraded", "draining",
            "stopped" or "failed".
        reason: why, when it is "failed" or "degraded".
        load_progress: 0 to 1, while it is "loading".
        context_tokens: None, as the next two, while no worker has it loaded.
    """

    name: str
    state: str
    reason: str
    revision: str
    load_progress: float
    context_tokens: int | None
    max_rows: int | None
    has_chat_template: bool | None
    requests_running: int
    requests_waiting: int
    pinned: bool
    memory_bytes: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The router's account of itself."""

    version: str
    epoch: int
    uptime_s: float
    draining: bool
    models: list[Model]
    requests_running: int
    requests_waiting: int


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the node.

    Attributes:
        role: "supervisor", "router", "worker" or "store".
        pid: 0 while it waits to be started again.
        state: "starting", "running", "stopping" or "backoff"; "orphaned" without a supervisor.
        epoch: of this incarnation.
        address: a gRPC target, once it runs.
        last_exit: how the last incarnation ended.
    """

    role: str
    name: str
    pid: int
    state: str
    epoch: int
    address: str
    restarts: int
    last_exit: str
