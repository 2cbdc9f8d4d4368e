"""Totals of an engine: its thread writes them, and anyone may read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bramley.worker.engine.slots import Parked


@dataclass(slots=True)
class Counters:
    """Totals since the start, and gauges of this moment.

    Attributes:
        step_began_s: of the step that runs, on the monotonic clock; 0 while idle or loading.
        rows: that are parked, by the number of their parking.
        owed: rows of which something is to be stored and is not.
        saving_s: what copying to the store's staging has taken.
        saving_longest_s: the longest that one step was longer for it.
        stored: objects that were.
        refused: objects that were not, by reason; they are tried again.
        lost: rows that went and owed something, by reason.
        weights_bytes: of the loaded model; 0 while it is loading.
        state_bytes: of all rows, spare room included.
        workspace_bytes: the most that was in use beside both.
        active_bytes: that MLX has in use.
    """

    steps: int = 0
    step_began_s: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    preemptions: int = 0
    parked: int = 0
    rows: Mapping[int, Parked] = field(default_factory=dict[int, Parked])
    owed: int = 0
    saving_s: float = 0.0
    saving_longest_s: float = 0.0
    stored: int = 0
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    weights_bytes: int = 0
    state_bytes: int = 0
    workspace_bytes: int = 0
    active_bytes: int = 0
