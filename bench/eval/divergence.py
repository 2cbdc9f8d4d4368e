"""How far one model's distributions are from another's, position by position: NumPy alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # (positions, vocabulary)
Floats = NDArray[np.float64]
ROWS = 32  # at a time: of a large vocabulary in float64 each is a megabyte


class NotFinite(ArithmeticError):
    """A model gave scores that are no distribution."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found at each of some positions, all (positions,).

    Attributes:
        kl: KL(reference || candidate) over the whole vocabulary, in nats.
        agrees: whether both find the same token likeliest; the lowest id among equals.
        reference_nll: minus the log-probability that the reference gives the text's own next
            token.
        candidate_nll: likewise.
    """

    kl: Floats
    agrees: NDArray[np.bool_]
    reference_nll: Floats
    candidate_nll: Floats


def compare(reference: Logits, candidate: Logits, targets: NDArray[np.int64]) -> Compared:
    """Compare two models at the same positions of the same text.

    Args:
        reference: its logits.
        candidate: its logits.
        targets: the text's own next tokens, (positions,).

    Returns:
        All in float64. Where the candidate rules out what the reference does not, the
        divergence is infinite.

    Raises:
        NotFinite: a NaN, +inf, or nothing above -inf.
    """
    parts = list(_parts(reference, candidate, targets))
    columns = zip(*parts, strict=True)
    return Compared(*(cast("Any", np.concatenate(column)) for column in columns))


def _parts(
    reference: Logits, candidate: Logits, targets: NDArray[np.int64]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(targets), ROWS):
        some = slice(start, start + ROWS)
        p, q = log_softmax(reference[some]), log_softmax(candidate[some])
        chosen = targets[some][:, None]
        with np.errstate(invalid="ignore"):  # both rule a token out
            terms = np.where(p > -np.inf, np.exp(p) * (p - q), 0.0)
        yield (
            # Never below 0, but for rounding.
            np.maximum(terms.sum(axis=1), 0.0),
            p.argmax(axis=1) == q.argmax(axis=1),
            -np.take_along_axis(p, chosen, axis=1)[:, 0],
            -np.take_along_axis(q, chosen, axis=1)[:, 0],
        )


def log_softmax(logits: Logits) -> Floats:
    """Make log-probabilities of logits.

    Returns:
        In float64, (positions, vocabulary).

    Raises:
        NotFinite: a row has no distribution.
    """
    wide = logits.astype(np.float64)
    peaks = wide.max(axis=1, keepdims=True)
    if not np.isfinite(peaks).all():
        raise NotFinite("scores that are no distribution")
    wide -= peaks
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
