"""What one step does, and what came of it: data between scheduler, executor and engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Chunk:
    """So many of a slot's next prompt tokens are computed."""

    slot: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The scheduler's decision.

    Attributes:
        admit: how many of the waiting, from the front, take a seat first.
        chunk: part of one prompt to prefill, before decoding.
        decode: slots that get one token each.
    """

    admit: int = 0
    chunk: Chunk | None = None
    decode: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do until something is submitted."""
        return not self.admit and self.chunk is None and not self.decode


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the executor got.

    Attributes:
        tokens: by slot, the token drawn.
        broken: slots whose logits were not finite: their tokens mean nothing.
    """

    tokens: Mapping[int, int] = field(default_factory=dict[int, int])
    broken: frozenset[int] = frozenset()
