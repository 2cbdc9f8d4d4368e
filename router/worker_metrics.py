"""The metrics of one worker, set from what is known of it; without a report they are 0."""

from typing import Any

from bramley.common.wire import short_name
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2
from bramley.router import exits, families
from bramley.router.fleet import WorkerView

_LOADING = (
    types_pb2.MODEL_STATE_STARTING,
    types_pb2.MODEL_STATE_LOADING,
    types_pb2.MODEL_STATE_WARMING,
)
_NOTHING = worker_pb2.Load()


class WorkerMetrics:
    """Of one worker of the settings, whatever its incarnation."""

    def __init__(self, made: dict[str, Any], view: WorkerView) -> None:
        def bound(name: str, *labels: str) -> Any:  # noqa: ANN401
            return made[name].labels(view.model, view.worker, *labels)

        def each(name: str, labels: tuple[str, ...]) -> dict[str, Any]:
            return {label: bound(name, label) for label in labels}

        self._states = each("worker_state", families.STATES)
        self._breaker = each("breaker_state", families.BREAKER_STATES)
        self._memory = each("worker_memory_bytes", families.MEMORY_KINDS)
        self._step_age = bound("worker_last_step_age_seconds")
        self._running = bound("worker_requests_running")
        self._waiting = bound("worker_requests_waiting")
        self._state_limit = bound("worker_state_limit_bytes")
        self._resident = bound("memory_resident_bytes")
        self._load_s = made["model_load_seconds"].labels(view.model)
        self._restarts = {
            reason: made["worker_restarts_total"].labels(view.model, reason)
            for reason in exits.REASONS
        }
        self._state: types_pb2.ModelState.ValueType | None = None  # as shown
        self._epoch = 0
        self._began_s = 0.0
        self._is_loading = False
        self.set_breaker("closed")

    def set_breaker(self, state: str) -> None:
        """Show the state of its breaker."""
        for name, gauge in self._breaker.items():
            gauge.set(name == state)

    def changed(self, view: WorkerView, before: WorkerView, state_bytes: int, now_s: float) -> None:
        """Show what is now known of it.

        Args:
            view: of now.
            before: what was known until now.
            state_bytes: that the state of its rows may take; 0 where no limit is set.
            now_s: the time.
        """
        if view.state != self._state:
            self._state = view.state
            current = short_name(types_pb2.ModelState, view.state)
            for name, gauge in self._states.items():
                gauge.set(name == current)
        if before.epoch and view.restarts > before.restarts:
            reason = exits.reason_of(view.last_exit)
            self._restarts[reason].inc(view.restarts - before.restarts)
        self._note_load(view, now_s)
        load = view.load or _NOTHING
        self._step_age.set(load.step_age_s)
        self._running.set(load.requests_running)
        self._waiting.set(load.requests_waiting)
        for kind, gauge in self._memory.items():
            gauge.set(getattr(load.memory, kind))
        self._resident.set(load.memory.resident)
        has_limit = view.load is not None and view.limits is not None
        self._state_limit.set(_state_limit(view.limits, state_bytes) if has_limit else 0)

    def _note_load(self, view: WorkerView, now_s: float) -> None:
        """Time a load that was seen to go on: a router that comes later has not seen its start."""
        if view.epoch != self._epoch:
            self._epoch, self._began_s, self._is_loading = view.epoch, now_s, False
        if view.process == node_pb2.PROCESS_STATE_STARTING or (
            view.load is not None and view.load.state in _LOADING
        ):
            self._is_loading = True
        elif view.is_ready and self._is_loading:
            self._load_s.observe(now_s - self._began_s)
            self._is_loading = False


def _state_limit(limits: types_pb2.ModelLimits | None, state_bytes: int) -> int:
    """The most that the rows of a worker can take; 0 where nobody knows."""
    if limits is None:
        return state_bytes
    row = limits.row_bytes + limits.token_bytes * limits.context_tokens
    most = limits.max_rows * row
    return min(most, state_bytes) if most and state_bytes else most or state_bytes
