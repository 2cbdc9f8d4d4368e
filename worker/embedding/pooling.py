"""Makes one vector of the hidden states of a text's tokens."""

from collections.abc import Sequence

import mlx.core as mx


def pool(hidden: mx.array, counts: Sequence[int]) -> tuple[mx.array, mx.array]:
    """Sum up rows, and take the last of each; padding is never read.

    Args:
        hidden: (B, L, W).
        counts: tokens of each row, at least one.

    Returns:
        Sums and last vectors, float32, (B, W) each.
    """
    rows, columns, _ = hidden.shape
    ends = mx.array(list(counts))
    inside = (mx.arange(columns) < ends[:, None])[..., None]
    sums = mx.where(inside, hidden.astype(mx.float32), 0).sum(axis=1)
    return sums, hidden[mx.arange(rows), ends - 1].astype(mx.float32)
