"""What one request asks of the sampler: checked once, then trusted."""

from dataclasses import dataclass

GREEDY_BELOW = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one row's next token is chosen.

    Attributes:
        temperature: 0 is greedy, and so is anything below ``GREEDY_BELOW``.
        top_p: 0 to 1; 1 keeps all, 0 the top token alone.
        top_k: tokens kept; 0 keeps all.
        min_p: 0 to 1, relative to the top token; 0 keeps all.
        seed: with the position, all that a row's randomness depends on.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def filters(self) -> bool:
        """Whether any token may be cut off before the draw."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0
