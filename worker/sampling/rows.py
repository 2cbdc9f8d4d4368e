"""Reductions along rows as long as a vocabulary, cut into columns or blocks to be fast."""

import math

import mlx.core as mx

_COLUMN = 64
_BLOCK = 64


def _columns(rows: mx.array, height: int, fill: float) -> mx.array:
    """Lay (B, V) out as (B, height, width): id ``r * width + c`` is row r of column c.

    Args:
        rows: of any length.
        height: of a column.
        fill: stands where the vocabulary does not fill the last row.

    Returns:
        A view, where the height divides V.
    """
    batch, size = rows.shape
    width = -(-size // height)
    if width * height != size:
        rows = mx.pad(rows, [(0, 0), (0, width * height - size)], constant_values=fill)
    return rows.reshape(batch, height, width)


def largest(rows: mx.array) -> mx.array:
    """Return the largest of each row, (B, 1); NaN if there is one."""
    # Down the columns first: several times as fast as along a row.
    tops = mx.max(_columns(rows, _COLUMN, -math.inf), axis=1)
    return mx.max(tops, axis=-1, keepdims=True)


def total(rows: mx.array) -> mx.array:
    """Return each row's sum, (B, 1)."""
    return mx.sum(mx.sum(_columns(rows, _COLUMN, 0.0), axis=1), axis=-1, keepdims=True)


def best(rows: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Find each row's ``count`` largest, which are at most V.

    Returns:
        Their ids and themselves, (B, count), largest first, lower ids first among equals.
    """
    batch, size = rows.shape
    # They are in the blocks of the largest tops. Of equal tops, sorting keeps the first blocks,
    # and those have the lower ids.
    length = _height(size, count)
    blocks = rows.reshape(batch, size // length, length)
    chosen = mx.sort(_order(mx.max(blocks, axis=-1))[:, :count], axis=-1)
    within = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(batch, -1)
    ids = (chosen[:, :, None] * length + mx.arange(length)).reshape(batch, -1)
    order = _order(within)[:, :count]
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(within, order, axis=-1)


def best_values(rows: mx.array, count: int) -> mx.array:
    """Return each row's ``count`` largest, largest first: faster than ``best``."""
    cut = _columns(rows, _height(rows.shape[-1], count), -math.inf)
    tops = mx.max(cut, axis=1)
    if count < tops.shape[-1]:
        chosen = mx.argpartition(-tops, count - 1, axis=-1)[:, :count]
        cut = mx.take_along_axis(cut, chosen[:, None, :], axis=2)
    within = cut.reshape(len(rows), -1)
    return -mx.sort(mx.partition(-within, count - 1, axis=-1)[:, :count], axis=-1)


def a_largest(rows: mx.array) -> mx.array:
    """Return the id of a largest of each row, (B, 1): of equals, the one found soonest."""
    cut = _columns(rows, _COLUMN, -math.inf)
    column = mx.argmax(mx.max(cut, axis=1), axis=-1, keepdims=True)
    within = mx.take_along_axis(cut, column[:, None, :], axis=2)[:, :, 0]
    return mx.argmax(within, axis=-1, keepdims=True) * cut.shape[-1] + column


def _height(size: int, count: int) -> int:
    # So that both the tops and what is in the chosen columns are few.
    return math.gcd(size, 1 << int(math.log2(math.sqrt(size / count))))


def _order(rows: mx.array) -> mx.array:
    return mx.argsort(-rows, axis=-1)  # stable


def invert(weights: mx.array, points: mx.array) -> mx.array:
    """Find where the running sum of each row passes so much of its whole.

    Args:
        weights: (B, V), none negative.
        points: (B, J), from [0, 1): so many searches in each row.

    Returns:
        Ids, (B, J), each of a weight above 0 if its row has one.
    """
    batch, size = weights.shape
    blocks = -(-size // _BLOCK)
    if blocks * _BLOCK != size:
        weights = mx.pad(weights, [(0, 0), (0, blocks * _BLOCK - size)])
    cut = weights.reshape(batch, blocks, _BLOCK)
    sums = mx.sum(cut, axis=-1)
    before = mx.cumsum(sums, axis=-1, inclusive=False)
    rest = points * (before[:, -1:] + sums[:, -1:])
    block = _passed(sums[:, None], before[:, None], rest)
    rest = rest - mx.take_along_axis(before, block, axis=-1)
    within = mx.take_along_axis(cut, block[:, :, None], axis=1)
    place = _passed(within, mx.cumsum(within, axis=-1, inclusive=False), rest)
    return block * _BLOCK + place


def _passed(weights: mx.array, before: mx.array, rest: mx.array) -> mx.array:
    # Rounding may leave the point beyond the last sum, or at a weight of 0: the last weight
    # above 0 is taken then.
    size = weights.shape[-1]
    places = mx.arange(size)
    score = mx.where(before + weights > rest[:, :, None], 2 * size - places, places + 1)
    return mx.argmax(mx.where(weights > 0, score, 0), axis=-1)
