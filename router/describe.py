"""Says in RouterService's words how models and their memory are."""

from bramley.common.wire import short_name, to_duration
from bramley.protos.v1 import router_pb2, types_pb2
from bramley.router.fleet import WorkerView
from bramley.router.lifecycle import Phase
from bramley.router.memory import MemoryLedger
from bramley.router.model import Model
from bramley.router.readiness import ModelReport


def of_model(model: Model, ledger: MemoryLedger, now_s: float) -> router_pb2.Model:
    """Describe one model at this moment."""
    gate, view = model.gate, model.gate.view
    loads = [one.load for one in gate.replicas.views if one.load]
    is_loaded = model.phase is not Phase.UNLOADED
    is_idle = is_loaded and not (gate.running_count or gate.waiting_count)
    return router_pb2.Model(
        name=model.name,
        state=model.state,
        reason=model.reason,
        revision=view.revision,
        limits=view.limits if view.is_ready else None,
        load_progress=_progress(view),
        requests_running=gate.running_count,
        requests_waiting=gate.waiting_count,
        pinned=model.is_pinned,
        memory_bytes=sum(one.memory_bytes for one in loads),
        reserved_bytes=ledger.held(model.name),
        needed_bytes=model.needed,
        idle=to_duration(now_s - max(gate.used_s, model.loaded_s)) if is_idle else None,
    )


def report(model: Model) -> ModelReport:
    """Describe one model as ``/readyz`` does."""
    gate, view = model.gate, model.gate.view
    return ModelReport(
        state=short_name(types_pb2.ModelState, model.state),
        reason=model.reason,
        load=model.policy.load,
        progress=_progress(view),
        running=gate.running_count,
        waiting=gate.waiting_count,
        full=gate.is_full,
    )


def of_memory(ledger: MemoryLedger) -> router_pb2.MemoryLedger:
    """Describe the ledger at this moment."""
    return router_pb2.MemoryLedger(
        budget_bytes=ledger.budget,
        store_bytes=ledger.store,
        reserved_bytes=ledger.held_by_all,
    )


def _progress(view: WorkerView) -> float:
    if view.is_ready:
        return 1.0
    return round(view.load.load_progress, 2) if view.load else 0.0
