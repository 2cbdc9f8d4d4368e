"""A request inside the worker: what it wants, how far it is, and its life as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from bramley.worker.cache.saved import Restore, Saving
from bramley.worker.sampling.params import SamplingParams


class Phase(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    SEATED = "seated"
    ENDED = "ended"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.SEATED, Phase.ENDED}),
    Phase.SEATED: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}

FinishReason = Literal["stop", "stop_sequence", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When a request ends, as far as token ids tell; stop strings are matched on the text.

    Attributes:
        max_tokens: at least 1.
        end_ids: ids that end the model's turn; empty when the request ignores them.
        stop_ids: the request's own.
    """

    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence from submission to its end; the engine thread alone changes it.

    Attributes:
        prompt: token ids, at least one.
        computed: tokens of the sequence whose state is written.
        output: ids generated so far; the last one's state is not written yet.
        slot: its seat, while SEATED.
        restore: a stored prefix to start from; given back once it is copied.
        saving: how its state is to be saved; None where it is not.
    """

    id: str
    prompt: Sequence[int]
    stop: StopRule
    sampling: SamplingParams
    wants_progress: bool = False
    phase: Phase = Phase.WAITING
    computed: int = 0
    output: list[int] = field(default_factory=list[int])
    slot: int = -1
    restore: Restore | None = None
    saving: Saving | None = None

    def enter(self, phase: Phase) -> None:
        """Go on to ``phase``."""
        assert phase in TRANSITIONS[self.phase], f"{self.id}: {self.phase} -> {phase}"
        self.phase = phase
        if phase is Phase.ENDED:
            self.release()

    def release(self) -> None:
        """Give the stored prefix back, if it still has one."""
        if self.restore is not None:
            self.restore.release()
            self.restore = None

    @property
    def prompt_left(self) -> int:
        """Prompt tokens to compute before the last one, which is a decode step of its own."""
        return max(len(self.prompt) - 1 - self.computed, 0)

    @property
    def next_input(self) -> int:
        """The token that the next decode step reads."""
        return self.output[-1] if self.output else self.prompt[-1]

    @property
    def next_position(self) -> int:
        """Position in the sequence of the token that the next decode step draws."""
        return len(self.prompt) + len(self.output)
