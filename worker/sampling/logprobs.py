"""The model's own log-probabilities: of its raw logits, before anything changes them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bramley.worker.request import TokenLogprob
from bramley.worker.sampling.rows import best, largest, total
from bramley.worker.sampling.weights import LOG2_E, weigh

Floats = NDArray[np.float32]

BLOCK = 1 << 14  # numbers at a time: they stay in the cache
LOGPROB_MIN = -9999.0  # of an impossible token: infinity has no form in JSON


class _Scratch(threading.local):
    """Each thread's memory to compute in: new pages would cost more than what is computed."""

    def __init__(self) -> None:
        self.powers: Floats = np.empty(BLOCK, np.float32)


_scratch = _Scratch()


@dataclass(frozen=True, slots=True)
class Scores:
    """How likely N tokens are, and the likeliest in their place; not evaluated.

    Attributes:
        parts: what ``finish`` takes.
        finish: gives the tokens' logits, the largest ones, and the logarithms of the sums of all
            exponentials relative to those, (N,) each.
        top_ids: the likeliest, best first, (N, K), if any are wanted.
        top: their logits, (N, K).
    """

    parts: tuple[mx.array, ...]
    finish: Callable[..., tuple[Floats, Floats, Floats]]
    top_ids: mx.array | None = None
    top: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """List what must be evaluated."""
        parts = (*self.parts, self.top_ids, self.top)
        return [part for part in parts if part is not None]

    def read(self) -> Iterator[TokenLogprob]:
        """Wait for them: natural logarithms, none below ``LOGPROB_MIN``."""
        chosen, peaks, sums = self.finish(*self.parts)
        logprobs = _logprobs(chosen, peaks, sums)
        if self.top_ids is None or self.top is None:
            yield from map(TokenLogprob, logprobs)
            return
        ids = cast("list[list[int]]", self.top_ids.tolist())
        tops: list[list[float]] = _logprobs(_floats(self.top), peaks[:, None], sums[:, None])
        for logprob, some, best_ones in zip(logprobs, ids, tops, strict=True):
            yield TokenLogprob(logprob, tuple(some), tuple(best_ones))


def score(logits: mx.array, tokens: mx.array, top: int, *, on_host: bool | None = None) -> Scores:
    """Score tokens.

    Args:
        logits: (N, V).
        tokens: ids, (N,).
        top: alternatives wanted; there are at most V.
        on_host: whether the host makes the sums; unless given, where the device is the CPU.

    Returns:
        All lazy.
    """
    if on_host is None:
        on_host = mx.default_device().type == mx.DeviceType.cpu
    logits = logits.astype(mx.float32)
    count = min(top, logits.shape[-1])
    likeliest = best(logits, count) if count else (None, None)
    if on_host:
        return Scores((logits, tokens), _on_host, *likeliest)
    peaks = largest(logits)
    sums = mx.log(total(weigh(logits, peaks, LOG2_E)))
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)
    return Scores((chosen[:, 0], peaks[:, 0], sums[:, 0]), _as_they_are, *likeliest)


def _as_they_are(
    chosen: mx.array, peaks: mx.array, sums: mx.array
) -> tuple[Floats, Floats, Floats]:
    return _floats(chosen), _floats(peaks), _floats(sums)


def _on_host(logits: mx.array, tokens: mx.array) -> tuple[Floats, Floats, Floats]:
    # On an x86 CPU MLX computes exponentials one after another, and NumPy several at a time: these
    # while the next step is computed.
    rows, ids = _floats(logits), cast("NDArray[np.uint32]", np.asarray(tokens))
    with np.errstate(all="ignore"):  # a broken row
        peaks = rows.max(axis=-1)
        sums = [_sum(row, peak) for row, peak in zip(rows, peaks, strict=True)]
        return rows[np.arange(len(rows)), ids], peaks, np.log(np.array(sums))


def _sum(row: Floats, peak: np.float32) -> np.float32:
    whole = np.float32(0)
    for at in range(0, len(row), BLOCK):
        block = row[at : at + BLOCK]
        powers = _scratch.powers[: len(block)]
        np.exp(np.subtract(block, peak, out=powers), out=powers)
        whole += powers.sum()
    return whole


def _logprobs(logits: Floats, peaks: Floats, sums: Floats) -> list[Any]:
    with np.errstate(invalid="ignore"):  # a broken row
        # Less the largest first: less both at once, large logits would lose their last digits.
        return np.maximum(logits - peaks - sums, LOGPROB_MIN).tolist()


def _floats(array: mx.array) -> Floats:
    return cast("Floats", np.asarray(array))
