"""Totals of an engine: its thread writes them, and anyone may read."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start, and gauges of this moment.

    Attributes:
        step_began_s: of the step that runs, on the monotonic clock; 0 while idle or loading.
        owed: rows of which something is to be stored and is not.
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
    owed: int = 0
    state_bytes: int = 0
    active_bytes: int = 0
