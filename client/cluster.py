"""What the router and the supervisor tell of themselves, as plain values."""

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the cluster.

    Attributes:
        state: "unloaded", "starting", "loading", "warming", "ready", "degraded", "draining",
            "stopped" or "failed".
        reason: why, when it is "failed" or "degraded".
        load_progress: 0 to 1, while it is "loading".
        context_tokens: None while no worker has it loaded, as are max_rows, has_chat_template and
            both formats.
        pinned: whether it is never unloaded to make room, nor for being idle.
        memory_bytes: that its workers have in use.
        reserved_bytes: held for it of the memory that all models share; 0 while it is unloaded.
        needed_bytes: that a load would reserve.
        idle_s: since its last request, while it is loaded and has none.
        reasoning_format: how it writes its reasoning (docs/reasoning.md); empty where it does not.
        tool_format: how it writes calls of tools (docs/tools.md); empty where it does not.
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
    reserved_bytes: int
    needed_bytes: int
    idle_s: float | None
    reasoning_format: str | None = None
    tool_format: str | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What takes memory of the machine.

    Attributes:
        budget_bytes: that models and store may take together; 0 is no limit.
        store_bytes: of them, for the cache store's RAM tier.
        reserved_bytes: of all loaded and loading models.
    """

    budget_bytes: int
    store_bytes: int
    reserved_bytes: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The router's account of itself.

    Attributes:
        memory: None where it is not told.
    """

    version: str
    epoch: int
    uptime_s: float
    draining: bool
    models: list[Model]
    requests_running: int
    requests_waiting: int
    memory: Memory | None


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
