"""What a step costs on this machine, as measured so far, and what is owed to decoding. Pure."""

from dataclasses import dataclass

OWED_MAX_S = 1.0  # to decoding, after chunks that did not wait or took far longer than expected
_NEWEST = 0.5  # weight of the newest measurement
_ENOUGH_TOKENS = 128


@dataclass(slots=True)
class Costs:
    """Seconds; a forward of n tokens takes about ``forward_s + n * token_s``.

    Attributes:
        forward_s: what a forward takes however few its tokens: the weights are read once.
        token_s: of each prompt token on top.
        owed_s: time that rows which decode still have coming to them before the next chunk.
    """

    forward_s: float = 0.0
    token_s: float = 1e-3
    owed_s: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Estimate a prefill of so many tokens, in one go."""
        return self.forward_s + tokens * self.token_s

    def tokens(self, seconds: float) -> int:
        """Estimate how many tokens can be computed in so long; may be 0."""
        return int(max(seconds - self.forward_s, 0.0) / self.token_s)

    def prefilled(self, tokens: int, seconds: float, share: float = 1.0) -> None:
        """Learn from a chunk, padding included; and owe decoding its share of what it took."""
        owed_s = self.owed_s + min(seconds, OWED_MAX_S) * share
        self.owed_s = min(owed_s, OWED_MAX_S) if share else 0.0  # without one nobody decodes
        # Never nothing a token, or the estimate of one slow forward would ask for endless chunks.
        measured = max(seconds - self.forward_s, seconds / 4) / tokens
        # A few tokens tell of the forward, and little of themselves.
        self.token_s += _NEWEST * min(tokens / _ENOUGH_TOKENS, 1.0) * (measured - self.token_s)

    def decoded(self, seconds: float) -> None:
        """Count a decode step against what is owed."""
        self.owed_s = max(self.owed_s - seconds, 0.0)
