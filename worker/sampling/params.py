"""What one request asks of the sampler: checked once, then trusted."""

from dataclasses import dataclass

GREEDY_BELOW = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one row's next token is chosen.

    Every id is one of the vocabulary's.

    Attributes:
        temperature: 0 is greedy, and so is anything below ``GREEDY_BELOW``.
        top_p: 0 to 1; 1 keeps all, 0 the top token alone.
        top_k: tokens kept; 0 keeps all.
        min_p: 0 to 1, relative to the top token; 0 keeps all.
        seed: with the position, all that a row's randomness depends on.
        xtc_probability: how often the likeliest choices are excluded.
        xtc_threshold: a choice is a token at least this likely, of those kept.
        xtc_exempt: ids that are never excluded.
        repetition_penalty: divides what is positive, multiplies what is not; 1 does nothing.
        presence_penalty: taken off once for each id of the output.
        frequency_penalty: taken off for each time that an id is in the output.
        penalty_window: the sequence's last tokens that the penalties look at; 0 is all.
        logit_bias: (id, what is added to its logit).
        bad_words: token sequences, none of which may be completed.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_exempt: frozenset[int] = frozenset()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p <= 0.0

    @property
    def penalises(self) -> bool:
        """Whether tokens that came before are less likely to come again."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def needs_history(self) -> bool:
        """Whether the tokens before it change which token is chosen."""
        return self.penalises or any(len(word) > 1 for word in self.bad_words)
