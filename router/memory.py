"""One ledger of the memory that models take, loaded or about to be, beside the store (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bramley.common.ids import ModelName
from bramley.protos.v1 import worker_pb2
from bramley.router.policy import ModelPolicy

STATE_FLOOR = 256 << 20  # for rows, where nothing limits them
LOADER_SHARE = 0.05  # what a load takes beside the weights, of them


@dataclass(slots=True)
class _Entry:
    reserved: int
    measured: int = 0


@dataclass
class MemoryLedger:
    """Who holds how much.

    Attributes:
        budget: of all together; 0 for no limit.
        store: of it, for the store's RAM tier.
    """

    budget: int = 0
    store: int = 0
    _entries: dict[ModelName, _Entry] = field(default_factory=dict[ModelName, _Entry])

    @property
    def held_by_all(self) -> int:
        """By every model that holds any."""
        return sum(map(self.held, self._entries))

    @property
    def free(self) -> int:
        """What a load may take now; never negative."""
        return max(0, self.most - self.held_by_all)

    @property
    def most(self) -> int:
        """What a model may take while no other is loaded."""
        return max(0, self.budget - self.store) if self.budget else 1 << 62

    def held(self, model: ModelName) -> int:
        """By one model: what it reserved, or what was measured if that is more."""
        entry = self._entries.get(model)
        return max(entry.reserved, entry.measured) if entry else 0

    def reserve(self, model: ModelName, needed: int) -> None:
        """Hold so much for a model, before its load begins."""
        self._entries[model] = _Entry(needed)

    def measure(self, model: ModelName, taken: int) -> None:
        """Note what a model's workers take by now."""
        if entry := self._entries.get(model):
            entry.measured = taken

    def release(self, model: ModelName) -> None:
        """Hold nothing for it any more: its processes are gone."""
        self._entries.pop(model, None)


def needed(policy: ModelPolicy, replicas: int, weights: int, workspace: int) -> int:
    """Predict what a model's workers take together.

    Args:
        policy: of the model.
        replicas: how many workers.
        weights: of one of them as measured when it was last loaded; 0 if it never was.
        workspace: likewise.

    Returns:
        Bytes: the settings' figure, or else weights (measured, or by the files), rows and a
        step's workspace.
    """
    if policy.memory_bytes:
        return replicas * policy.memory_bytes
    of_weights = weights or round(policy.weights_bytes * (1 + LOADER_SHARE))
    return replicas * (of_weights + workspace + (policy.state_bytes or STATE_FLOOR))


def taken(loads: Iterable[worker_pb2.Load]) -> int:
    """Add up what workers report that they take."""
    return sum(max(_of_parts(load.memory), load.memory_bytes) for load in loads)


def _of_parts(memory: worker_pb2.Memory) -> int:
    return memory.weights + memory.state + memory.workspace
