"""One model: its line, its workers' facts, and what is to be of it."""

from math import inf

from bramley.common.errors import NeverFits
from bramley.common.ids import ModelName
from bramley.protos.v1 import types_pb2
from bramley.router import lifecycle, memory
from bramley.router.gate import Gate
from bramley.router.lifecycle import Phase, Why
from bramley.router.memory import MemoryLedger
from bramley.router.metrics import ModelMetrics
from bramley.router.policy import ModelPolicy

State = types_pb2.ModelState.ValueType


class Model:
    """A model of the settings; router/models.py writes it.

    Attributes:
        gate: its line.
        metrics: bound to its name.
        policy: of the settings.
        ledger: of all models' memory.
        phase: what is to be of its processes.
        is_pinned: whether it stays loaded.
        asked_s: since when an operator, or the start, waits for its load; infinite if nobody does.
        why: what it drains for.
    """

    def __init__(
        self,
        gate: Gate,
        metrics: ModelMetrics,
        policy: ModelPolicy,
        replicas: int,
        ledger: MemoryLedger,
    ) -> None:
        self.gate = gate
        self.metrics = metrics
        self.policy = policy
        self.replicas = replicas
        self.ledger = ledger
        self.phase = Phase.UNLOADED
        self.is_pinned = policy.pinned
        self.asked_s = inf
        self.why: Why | None = None
        self.drain_until_s = inf
        self.loaded_s = 0.0
        self.ready_s = inf
        self.weights = 0  # of one worker, as measured
        self.workspace = 0

    @property
    def name(self) -> ModelName:
        """As clients call it."""
        return self.gate.model

    @property
    def needed(self) -> int:
        """Bytes that a load reserves."""
        return memory.needed(self.policy, self.replicas, self.weights, self.workspace)

    @property
    def is_asked(self) -> bool:
        """Whether an operator, or the start, waits for its load."""
        return self.asked_s < inf

    def ask(self, now_s: float) -> None:
        """Have it loaded."""
        self.asked_s = min(self.asked_s, now_s)

    @property
    def is_settled(self) -> bool:
        """Whether a load that was asked for has ended, well or not."""
        if self.phase is Phase.LOADED:
            return self.gate.view.is_ready or self.gate.view.is_failed
        return self.never_fits

    @property
    def never_fits(self) -> bool:
        """Whether it takes more than there is for all of them together."""
        return self.phase is Phase.UNLOADED and self.needed > self.ledger.most

    @property
    def state(self) -> State:
        """What clients are told."""
        if self.never_fits:
            return types_pb2.MODEL_STATE_FAILED
        if self.phase is Phase.UNLOADED:
            starting, unloaded = types_pb2.MODEL_STATE_STARTING, types_pb2.MODEL_STATE_UNLOADED
            return starting if self.is_asked else unloaded
        if self.phase is not Phase.LOADED:
            return types_pb2.MODEL_STATE_DRAINING
        return self.gate.view.state

    @property
    def is_served(self) -> bool:
        """Whether a request that comes now will be served."""
        if self.phase is Phase.LOADED:
            return self.gate.view.is_ready
        return self.policy.load != "manual" and not self.never_fits

    @property
    def reason(self) -> str:
        """Why, when the state is FAILED or DEGRADED."""
        if self.never_fits:
            return NeverFits(self.name, needed=self.needed, budget=self.ledger.most).message
        return self.gate.view.reason if self.phase is Phase.LOADED else ""

    @property
    def facts(self) -> lifecycle.Model:
        """What ``plan`` asks for."""
        return lifecycle.Model(
            name=self.name,
            policy=self.policy,
            phase=self.phase,
            is_pinned=self.is_pinned,
            needed=self.needed,
            held=self.ledger.held(self.name),
            is_asked=self.is_asked,
            running=self.gate.running_count,
            waiting=self.gate.waiting_count,
            waiting_since_s=min(self.gate.waiting_since_s, self.asked_s),
            used_s=max(self.gate.used_s, self.loaded_s),
            loaded_s=self.loaded_s,
            ready_s=self.ready_s,
            why=self.why,
            drain_until_s=self.drain_until_s,
        )

    def measure(self) -> int:
        """Take in what its workers report that they take, and add it up."""
        loads = [view.load for view in self.gate.replicas.views if view.load]
        self.weights = max([one.memory.weights for one in loads], default=0) or self.weights
        self.workspace = max([one.memory.workspace for one in loads], default=0) or self.workspace
        return memory.taken(loads)
