"""The gated delta rule over many columns as matrix products, where mlx-lm has but a loop.

mlx-lm has a kernel for Metal only; elsewhere it takes a prompt's columns one after another. Here
they are taken in chunks, after Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024). In a
chunk that starts with the state ``S`` the rule

    S_i = g_i S_(i-1) + u_i k_i^T,    u_i = beta_i (v_i - g_i S_(i-1) k_i),    y_i = S_i q_i

means, with ``d_ij`` for the product of the gates after j up to i and ``c_i`` for that of all up
to i, that the corrections ``u`` solve a unit lower triangular system:

    (I + L) U = beta V - (beta c K) S^T,    L_ij = beta_i d_ij (k_i . k_j) for j < i

Its solution is linear in ``S``, so all is computed for all chunks at once, but for the state that
each begins with: that is one product a chunk, in turn. Gates are multiplied as they are: no
logarithms, no exponentials, and nothing that can overflow.
"""

from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np
from mlx import nn

from bramley.worker.models.activations import quicken
from bramley.worker.models.rebinding import derive, global_in, global_of, layers_that_use, rebind

# Columns a chunk, counted from where a forward starts: pieces that end where chunks of the whole
# prompt do give the same bits as the whole. On a CPU all of the scheduler's pieces do, which are
# multiples of this; 32 would be quicker for the rule itself, and longer ones no more, as
# their products are shared among threads, which costs more than they take.
_CPU_CHUNK, _GPU_CHUNK = 16, 64

# Decays of less are taken for none, and of other numbers no more is kept than a 2**-31st. Else
# their products fall below what float32 holds in full, and CPUs take a hundred times as long for
# each. Numbers of float32 beside a 1 are no more exact.
_TRACE, _COARSE = 1e-10, 2.0**-8


def gated_delta_chunked(  # noqa: PLR0913, PLR0917 -- mlx-lm's own arguments
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    *,
    chunk: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Apply the rule to all columns; the same as mlx-lm's ``gated_delta_ops``.

    A row's bits depend neither on the other rows nor on columns behind its own, nor on whether
    chunks are of one call or of several, as far as those of a matrix product do not.

    Args:
        q: (B, T, Hk, Dk).
        k: (B, T, Hk, Dk).
        v: (B, T, Hv, Dv); value heads ``i * Hv / Hk`` and on share key head i.
        g: gates of at most 1: of a head, (B, T, Hv), or of each key dimension, (B, T, Hv, Dk).
        beta: (B, T, Hv).
        state: before the first column, (B, Hv, Dv, Dk); zeros if None.
        mask: (B, T), False where a column is padding: it changes no state, but must be finite.
        chunk: columns a chunk, a power of two; what suits the device if None.

    Returns:
        What each column gives, (B, T, Hv, Dv) of the type of ``q``, and the state after the last.
    """
    rows, columns, key_heads, key_dim = k.shape
    heads, value_dim = v.shape[2:]
    shared = heads // key_heads
    if mask is not None:
        beta = mx.where(mask[..., None], beta, 0)
        g = mx.where(mask.reshape(*mask.shape, *[1] * (g.ndim - 2)), g, 1)
    if chunk is None:
        chunk = best_chunk()
    size = min(chunk, 1 << (columns - 1).bit_length())
    # All below: (chunks, B, Hk, value heads of each, ...).
    queries, keys = (_chunks(x, size, (key_heads, 1, key_dim)) for x in (q, k))
    values = _chunks(v, size, (key_heads, shared, value_dim))
    strengths = _chunks(beta, size, (key_heads, shared, 1))
    gates = _chunks(g, size, (key_heads, shared, 1 if g.ndim == 3 else key_dim), padding=1)

    since_start = _without_traces(mx.cumprod(gates, axis=-2))
    until_end = _without_traces(mx.cumprod(gates, axis=-2, reverse=True, inclusive=False))
    among_keys, of_queries = (_scalar_scores if g.ndim == 3 else _vector_scores)(
        gates, keys, queries
    )
    inverse = _coarse(_unit_inverse(strengths * among_keys))
    # U = free - bound S^T
    free = inverse @ (strengths * values)
    bound = _coarse(inverse @ (strengths * since_start * keys))
    fading = keys * until_end
    gained = free.swapaxes(-1, -2) @ fading
    replaced = bound.swapaxes(-1, -2) @ fading
    kept = since_start[..., -1:, :]

    if state is None:
        state = mx.zeros((rows, heads, value_dim, key_dim))
    here = state.astype(mx.float32).reshape(rows, key_heads, shared, value_dim, key_dim)
    starts: list[mx.array] = []
    for number in range(len(gained)):
        starts.append(here)
        here = mx.addmm(kept[number] * here + gained[number], here, replaced[number], alpha=-1.0)
    reading = queries * since_start - of_queries @ bound
    y = mx.addmm(of_queries @ free, reading, mx.stack(starts).swapaxes(-1, -2))
    y = y.transpose(1, 0, 4, 2, 3, 5).reshape(rows, -1, heads, value_dim)[:, :columns]
    return y.astype(q.dtype), here.reshape(rows, heads, value_dim, key_dim)


def best_chunk() -> int:
    """Return the columns a chunk that suit the device."""
    return _CPU_CHUNK if mx.default_device().type == mx.DeviceType.cpu else _GPU_CHUNK


def _chunks(x: mx.array, size: int, heads: tuple[int, int, int], padding: float = 0) -> mx.array:
    """Cut (B, T, ...) into (chunks, B, Hk, value heads of each, size, D), in float32."""
    rows, columns = x.shape[:2]
    x = x.reshape(rows, columns, *heads)
    if missing := -columns % size:
        x = mx.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0), (0, 0)], constant_values=padding)
    x = x.reshape(rows, -1, size, *heads).transpose(1, 0, 3, 4, 2, 5)
    return mx.contiguous(x).astype(mx.float32)


def _without_traces(decay: mx.array) -> mx.array:
    return mx.maximum(decay, _TRACE) - _TRACE


def _coarse(x: mx.array) -> mx.array:
    return (x + _COARSE) - _COARSE


def _scalar_scores(gates: mx.array, keys: mx.array, queries: mx.array) -> tuple[mx.array, mx.array]:
    """Products of keys with earlier keys, and of queries with keys up to theirs, as they faded."""
    masks = _masks(gates.shape[-2])
    # Not mx.where, which takes one number after another on the CPU.
    decay = _without_traces(mx.cumprod(gates * masks.later + (1 - masks.later), axis=-2))
    earlier = keys.swapaxes(-1, -2)
    among_keys = (keys @ earlier) * (decay * masks.later)
    of_queries = (queries @ earlier) * (decay * (masks.later + masks.same))
    return among_keys, of_queries


def _vector_scores(gates: mx.array, keys: mx.array, queries: mx.array) -> tuple[mx.array, mx.array]:
    """As ``_scalar_scores``, for gates that differ between the dimensions of a key."""
    # Two columns' decay is a product within the later one's half of a block and one within the
    # earlier one's, where the block is the smallest of 2, 4, 8, ... columns that has both.
    masks = _masks(gates.shape[-2])
    among_keys = mx.zeros_like(masks.same)
    of_queries = (queries * keys).sum(axis=-1, keepdims=True) * masks.same
    for level, pairs in enumerate(masks.halves):
        halves = gates.reshape(*gates.shape[:-2], -1, 1 << level, gates.shape[-1])
        after = _without_traces(mx.cumprod(halves, axis=-2)).reshape(gates.shape)
        before = mx.cumprod(halves, axis=-2, reverse=True, inclusive=False)
        before = _without_traces(before).reshape(gates.shape)
        earlier = (keys * before).swapaxes(-1, -2)
        among_keys = among_keys + ((keys * after) @ earlier) * pairs
        of_queries = of_queries + ((queries * after) @ earlier) * pairs
    return among_keys, of_queries


def _unit_inverse(lower: mx.array) -> mx.array:
    """Invert I + L for strictly lower triangular L, (..., C, C), C a power of two."""
    # Blocks on the diagonal are inverted, each of two that are. A power series of -L would be
    # shorter, but its terms grow without bound where keys repeat, and the sum is lost in them.
    masks = _masks(lower.shape[-1])
    inverse = masks.same
    for level, pairs in enumerate(masks.halves):
        between = lower * pairs
        if level == 0:
            inverse = inverse - between
        else:
            inverse = mx.addmm(inverse, inverse @ between, inverse, alpha=-1.0)
    return inverse


@dataclass(frozen=True, slots=True)
class _Masks:
    """Ones and zeros for pairs of a chunk's columns, (C, C) each.

    Attributes:
        same: a column and itself.
        later: a column and an earlier one.
        halves: at each level, the columns of a block's second half and those of its first, for
            blocks of 2, 4, 8, ..., C columns.
    """

    same: mx.array
    later: mx.array
    halves: list[mx.array]


@cache
def _masks(size: int) -> _Masks:
    # Made by numpy: what MLX makes lazily would belong to the forward that first asked for it.
    column = np.arange(size)
    halves: list[mx.array] = []
    for level in range(size.bit_length() - 1):
        block, half = column >> (level + 1), (column >> level) & 1
        pairs = (block[:, None] == block) & (half[:, None] > half)
        halves.append(mx.array(pairs.astype(np.float32)))
    same, later = np.eye(size, dtype=np.float32), np.tri(size, k=-1, dtype=np.float32)
    return _Masks(mx.array(same), mx.array(later), halves)


def fast_prefill(model: nn.Module) -> int:
    """Let a loaded model's gated delta layers take a prompt's columns in chunks.

    On each instance, the layer's own code runs with one name bound to another function, and on a
    CPU with what is slow beside it bound to others, too: nothing else of it changes, nor do its
    parameters, and mlx-lm's classes stay as they are. A decode step is mlx-lm's. Where there is
    Metal, so is all.

    Args:
        model: of any architecture.

    Returns:
        How many layers were changed.
    """
    if mx.metal.is_available():
        return 0
    layers = list(layers_that_use(model, _UPDATE))
    for layer in layers:
        layer.__class__ = _chunked(type(layer))
        if mx.default_device().type == mx.DeviceType.cpu:
            quicken(layer)
    return len(layers)


# By these names a layer calls mlx-lm's rule, and that its loop.
_UPDATE, _LOOP = "gated_delta_update", "gated_delta_ops"


@cache
def _chunked(layer: type[nn.Module]) -> type[nn.Module]:
    """Derive a layer that differs in nothing but the loop."""
    update = global_of(layer, _UPDATE)
    loop = global_in(update, _LOOP)

    def rule(q: mx.array, *others: mx.array) -> tuple[mx.array, mx.array]:
        return (loop if q.shape[1] == 1 else gated_delta_chunked)(q, *others)

    return derive(layer, {_UPDATE: rebind(update, {_LOOP: rule})})
