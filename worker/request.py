"""A request inside the worker: what it wants, how far it is, and its life as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Literal

from bramley.worker.cache.saved import Restore, Saving
from bramley.worker.grammar.guide import Guide
from bramley.worker.sampling.params import SamplingParams


class Phase(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    SEATED = "seated"
    ENDED = "ended"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.SEATED, Phase.ENDED}),
    Phase.SEATED: frozenset({Phase.WAITING, Phase.ENDED}),  # back to waiting when preempted
    Phase.ENDED: frozenset(),
}

FinishReason = Literal["stop", "stop_sequence", "length", "grammar"]


class Priority(IntEnum):
    """How urgent a request is; a higher class goes first, until others have waited long."""

    BULK = 0
    DEFAULT = 1
    INTERACTIVE = 2
    SYSTEM = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When a request ends, as far as token ids tell; stop strings are matched on the text.

    Attributes:
        max_tokens: at least 1.
        min_tokens: before so many, no id that would end the answer is drawn.
        end_ids: ids that end the model's turn; empty when the request ignores them.
        stop_ids: the request's own.
    """

    max_tokens: int
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LogprobRule:
    """Log-probabilities that a request asks for: of each token drawn, and more.

    Attributes:
        top: alternatives at each place.
        prompt: those of the prompt's own tokens as well; its state is then computed afresh.
    """

    top: int = 0
    prompt: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token, and the best alternatives, most likely first."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

    def best(self, count: int) -> "TokenLogprob":
        """Leave so many alternatives at most."""
        if len(self.top_ids) <= count:
            return self
        return TokenLogprob(self.logprob, self.top_ids[:count], self.top_logprobs[:count])


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence from submission to its end; whoever has it in hand changes it.

    That is the engine's thread, but for a request that lost its seat, until it is handed back.

    Attributes:
        prompt: token ids, at least one.
        priority: its class.
        scope: root of its namespace: rows of one scope may share computed tokens within the
            engine; empty shares with nobody.
        leader: of several answers to one prompt, the first: the others wait until its prompt
            is computed, and start from a copy.
        arrived_s: on the monotonic clock; set when it is submitted.
        computed: tokens of the sequence whose state is written.
        output: ids generated so far; the last one's state is not written yet.
        prompt_logprobs: of the prompt tokens computed so far, where they are asked for.
        slot: its seat, while SEATED.
        restore: a stored prefix to start from; given back once it is copied.
        saving: how its state is to be saved; None where it is not.
        guide: which ids it may draw; None where it may draw any. It has followed ``output``.
    """

    id: str
    prompt: Sequence[int]
    stop: StopRule
    sampling: SamplingParams
    logprobs: LogprobRule | None = None
    priority: Priority = Priority.DEFAULT
    scope: bytes = b""
    leader: "Request | None" = None
    wants_progress: bool = False
    arrived_s: float = 0.0
    phase: Phase = Phase.WAITING
    computed: int = 0
    output: list[int] = field(default_factory=list[int])
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    slot: int = -1
    restore: Restore | None = None
    saving: Saving | None = None
    guide: Guide | None = None

    def enter(self, phase: Phase) -> None:
        """Go on to ``phase``."""
        assert phase in TRANSITIONS[self.phase], f"{self.id}: {self.phase} -> {phase}"
        self.phase = phase
        if phase is Phase.ENDED:
            self.release()

    def start_over(self) -> None:
        """Wait for a seat again, with nothing computed; what was drawn stays drawn."""
        self.enter(Phase.WAITING)
        self.computed = 0
        self.prompt_logprobs.clear()
        if self.saving is not None:
            self.saving.account.restart()

    def release(self) -> None:
        """Give the stored prefix back, if it still has one."""
        if self.restore is not None:
            self.restore.release()
            self.restore = None

    @property
    def prompt_left(self) -> int:
        """Tokens to compute before the last one, which is a decode step of its own.

        A request that was preempted has its own output to compute again as well.
        """
        return max(len(self.prompt) + len(self.output) - 1 - self.computed, 0)

    @property
    def next_stop(self) -> int:
        """Where its prefill must pause: at its end, or where its state has to be copied."""
        end = len(self.prompt) + len(self.output) - 1
        return end if self.saving is None else self.saving.next_stop(self.computed, end)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the logits of its prompt are wanted as it is computed."""
        return self.logprobs is not None and self.logprobs.prompt and not self.output

    @property
    def next_position(self) -> int:
        """Position in the sequence of the token that the next decode step draws."""
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens [start, stop) of the sequence, prompt and output."""
        prompt = len(self.prompt)
        return [
            *self.prompt[start : min(stop, prompt)],
            *self.output[max(start - prompt, 0) : max(stop - prompt, 0)],
        ]
