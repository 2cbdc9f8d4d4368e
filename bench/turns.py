"""What a turn of bench/capture.py consists of, and what it has taken."""

from dataclasses import dataclass

STREAMS = 4
STREAM_PROMPT = 24


@dataclass(frozen=True, slots=True)
class Load:
    """What a turn consists of.

    Attributes:
        tokens: of each stream.
        others: requests that come meanwhile.
        prompt: tokens of each of theirs.
        answer: tokens of each of theirs.
    """

    tokens: int
    others: int
    prompt: int
    answer: int


LOADS = {"tiny": Load(160, 4, 400, 36), "smollm2": Load(40, 2, 300, 36)}


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side of a turn has taken.

    Attributes:
        took_s: until all streams had their tokens.
        saving_s: of the engine's thread, for copies.
        longest_s: of one copy, since the start.
        stored: objects.
    """

    took_s: float
    saving_s: float
    longest_s: float
    stored: int
