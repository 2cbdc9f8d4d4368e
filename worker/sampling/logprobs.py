"""The model's own log-probabilities: of its raw logits, before anything changes them."""

import threading

import mlx.core as mx

from bramley.worker.sampling.rows import best, largest, total
from bramley.worker.sampling.weights import LOG2_E, weigh

LOGPROB_MIN = -9999.0  # of an impossible token: infinity has no form in JSON

_of_thread = threading.local()


def beside() -> mx.Stream:
    """Return the stream for what the next step does not wait for; this thread's own.

    On the CPU it is another core's: a forward's element-wise work keeps one busy.
    """
    if mx.default_device().type == mx.DeviceType.gpu:
        return mx.default_stream(mx.default_device())
    if not hasattr(_of_thread, "stream"):
        _of_thread.stream = mx.new_stream(mx.default_device())
    return _of_thread.stream


def logprobs(logits: mx.array, tokens: mx.array, top: int) -> tuple[mx.array, mx.array, mx.array]:
    """Find how likely tokens are, and the likeliest in their place.

    Args:
        logits: (N, V).
        tokens: ids, (N,).
        top: alternatives wanted; there are at most V.

    Returns:
        Natural logarithms (N,), float32, none below ``LOGPROB_MIN``; the likeliest ids (N, top),
        best first; theirs.
    """
    logits = logits.astype(mx.float32)
    peak = largest(logits)
    whole = peak + mx.log(total(weigh(logits, peak, LOG2_E)))
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)
    mine = mx.maximum(chosen - whole, LOGPROB_MIN)[:, 0]
    count = min(top, logits.shape[-1])
    if count == 0:
        none = mx.zeros((len(logits), 0))
        return mine, none.astype(mx.uint32), none
    ids, found = best(logits, count)
    return mine, ids.astype(mx.uint32), mx.maximum(found - whole, LOGPROB_MIN)
