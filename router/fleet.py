"""What is known of each model's worker: ``apply(view, event) -> view`` (pure).

News comes from two sides: the node tells of processes, the worker itself of its load. Both
name an incarnation by its epoch, and an older one's news never overwrites a newer one's.
"""

from dataclasses import dataclass, replace
from math import inf

from bramley.common.ids import ModelName, WorkerName
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2

CRASH_LOOP_STARTS = 3

State = types_pb2.ModelState.ValueType
_SERVING = (types_pb2.MODEL_STATE_READY, types_pb2.MODEL_STATE_DEGRADED)


@dataclass(frozen=True)
class WorkerView:
    """One of a model's workers as the router sees it.

    Attributes:
        worker: its name.
        process: UNSPECIFIED until the node has told of it.
        restarts: by the node's count.
        restarts_when_ready: that count when it was last ready: the rest are failed starts.
        refusal: why the node does not start it; empty if it does.
        load: the newest report of this epoch; None before the first, and when the stream of
            reports broke.
        limits: of the newest worker that was ready, this epoch's or an older one's.
        was_ready: whether this epoch ever was.
        is_stuck: whether its engine has been inside one step for too long.
    """

    model: ModelName
    worker: WorkerName
    epoch: int = 0
    process: node_pb2.ProcessState.ValueType = node_pb2.PROCESS_STATE_UNSPECIFIED
    address: str = ""
    last_exit: str = ""
    restarts: int = 0
    restarts_when_ready: int = 0
    refusal: str = ""
    load: worker_pb2.Load | None = None
    limits: types_pb2.ModelLimits | None = None
    revision: str = ""
    was_ready: bool = False
    is_stuck: bool = False

    @property
    def incarnation(self) -> str:
        """Names its process among all that there were."""
        return f"{self.worker}-{self.epoch}"

    @property
    def is_running(self) -> bool:
        """Whether its process runs and said where."""
        return self.process == node_pb2.PROCESS_STATE_RUNNING and bool(self.address)

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent to it now."""
        is_serving = self.load is not None and self.load.state in _SERVING
        return self.is_running and is_serving and not self.is_stuck

    @property
    def is_failed(self) -> bool:
        """Whether waiting for it is in vain: it keeps crashing, or nobody starts it."""
        if self.refusal:
            return True
        if self.load is not None and self.load.state == types_pb2.MODEL_STATE_FAILED:
            return True
        failed_starts = self.restarts - self.restarts_when_ready
        return failed_starts >= CRASH_LOOP_STARTS and not self.is_ready

    @property
    def state(self) -> State:
        """What clients are told."""
        if self.is_failed:
            return types_pb2.MODEL_STATE_FAILED
        if self.process == node_pb2.PROCESS_STATE_STOPPING:
            return types_pb2.MODEL_STATE_DRAINING
        if self.is_stuck or (self.load is None and self.is_running and self.was_ready):
            return types_pb2.MODEL_STATE_DEGRADED
        if self.load is None or not self.is_running:
            return types_pb2.MODEL_STATE_STARTING
        return self.load.state or types_pb2.MODEL_STATE_STARTING

    @property
    def reason(self) -> str:
        """Why, when the state is FAILED or DEGRADED."""
        if self.state == types_pb2.MODEL_STATE_DEGRADED:
            return "its engine is inside one step" if self.is_stuck else "it does not report"
        if self.state != types_pb2.MODEL_STATE_FAILED:
            return ""
        return self.refusal or self.last_exit or "its worker could not load the model"

    @property
    def requests_running(self) -> int:
        """By its own last report."""
        return self.load.requests_running if self.load else 0

    @property
    def requests_waiting(self) -> int:
        """By its own last report."""
        return self.load.requests_waiting if self.load else 0


@dataclass(frozen=True)
class ProcessSeen:
    """The node tells of the worker's process."""

    process: node_pb2.Process


@dataclass(frozen=True)
class ProcessGone:
    """The node tells of its processes, and this worker's is not among them."""


@dataclass(frozen=True)
class StartRefused:
    """The node will not start it."""

    reason: str


@dataclass(frozen=True)
class StartTaken:
    """The node takes it on."""


@dataclass(frozen=True)
class TriedAgain:
    """An operator has it started at once: what failed before counts no more."""


@dataclass(frozen=True)
class LoadSeen:
    """The worker of ``epoch`` reports."""

    epoch: int
    load: worker_pb2.Load


@dataclass(frozen=True)
class LoadLost:
    """The worker of ``epoch`` has stopped reporting."""

    epoch: int


Event = ProcessSeen | ProcessGone | StartRefused | StartTaken | TriedAgain | LoadSeen | LoadLost


def apply(view: WorkerView, event: Event, hang_timeout_s: float = inf) -> WorkerView:
    """Take one piece of news into a view.

    Args:
        view: what was known.
        event: the news.
        hang_timeout_s: half of it inside one step, and a worker is stuck.

    Returns:
        What is known now.
    """
    match event:
        case ProcessSeen(process):
            return _process_seen(view, process)
        case ProcessGone():
            return replace(
                view,
                process=node_pb2.PROCESS_STATE_UNSPECIFIED,
                address="",
                load=None,
                is_stuck=False,
                was_ready=False,
            )
        case StartRefused() | StartTaken():
            return replace(view, refusal=event.reason if isinstance(event, StartRefused) else "")
        case TriedAgain():
            return replace(view, refusal="", load=None, restarts_when_ready=view.restarts)
        case LoadSeen(epoch, load):
            is_heard = epoch == view.epoch and view.is_running
            return _load_seen(view, load, hang_timeout_s) if is_heard else view
        case LoadLost(epoch):
            return replace(view, load=None, is_stuck=False) if epoch == view.epoch else view


def _process_seen(view: WorkerView, process: node_pb2.Process) -> WorkerView:
    if process.epoch < view.epoch:
        return view
    # The count at first sight, and one that a new supervisor started afresh, is no failure.
    known = view.process != node_pb2.PROCESS_STATE_UNSPECIFIED
    baseline = min(view.restarts_when_ready, process.restarts) if known else process.restarts
    same = process.epoch == view.epoch and process.state == node_pb2.PROCESS_STATE_RUNNING
    return replace(
        view,
        epoch=process.epoch,
        process=process.state,
        address=process.address,
        last_exit=process.last_exit,
        restarts=process.restarts,
        restarts_when_ready=baseline,
        load=view.load if same else None,
        is_stuck=view.is_stuck and same,
        was_ready=view.was_ready and process.epoch == view.epoch,
    )


def _load_seen(view: WorkerView, load: worker_pb2.Load, hang_timeout_s: float) -> WorkerView:
    is_stuck = load.step_age_s > hang_timeout_s / 2
    if load.state not in _SERVING:
        return replace(view, load=load, is_stuck=is_stuck)
    limits = load.limits if load.HasField("limits") else view.limits
    return replace(
        view,
        load=load,
        limits=limits,
        revision=load.revision or view.revision,
        restarts_when_ready=view.restarts,
        was_ready=True,
        is_stuck=is_stuck,
    )
