"""Sliding windows show what mlx-lm's own cache shows, and all layers of one take one mask."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import RotatingKVCache
from numpy.typing import NDArray

from bramley.worker.cache.rotating import RotatingState
from bramley.worker.cache.table import RowTable
from bramley.worker.cache.window import ROLLBACK
from support.arrays import floats

TOKENS = 200


def shares(cache: Any, first: int, count: int, window_size: int | None) -> NDArray[np.bool_]:
    """Append tokens, and say which tokens each of them sees, (count, TOKENS)."""
    keys = mx.zeros((1, 1, count, TOKENS))
    values = mx.eye(TOKENS)[None, None, first : first + count]
    mask = cache.make_mask(count, window_size=window_size)
    seen = cache.update_and_fetch(keys, values)
    out = mx.fast.scaled_dot_product_attention(keys, *seen, scale=1.0, mask=mask)
    return floats(out)[0, 0] > 1e-6


# With sinks one by one only: in longer pieces mlx-lm masks them.
@pytest.mark.parametrize(
    ("keep", "pieces", "window_size"),
    [
        (0, (1,), None),
        (0, (1,), 5),
        (0, (1,), 16),
        (0, (1,), 17),
        (4, (1,), None),
        (4, (1,), 16),
        (0, (1, 7, 30, 70, 3), None),
        (0, (1, 7, 30, 70, 3), 16),
    ],
)
def test_a_token_sees_what_mlx_lm_shows_it(
    keep: int, pieces: tuple[int, ...], window_size: int | None
) -> None:
    table = RowTable()
    ours, theirs = RotatingState(table, 16, keep), RotatingKVCache(16, keep)
    table.join()
    first = turn = 0
    while first < TOKENS:
        count = min(pieces[turn % len(pieces)], TOKENS - first)
        turn += 1
        table.begin(range(1), count)
        found = shares(ours, first, count, window_size)
        table.commit()
        np.testing.assert_array_equal(found, shares(theirs, first, count, window_size))
        first += count


@pytest.mark.parametrize("columns", [1, 2, 16, 300])
@pytest.mark.parametrize("lengths", [(0,), (90,), (90, 90), (3, 90, 17)])
def test_every_layer_of_a_window_takes_the_mask_of_one(
    lengths: tuple[int, ...], columns: int
) -> None:
    table = RowTable()
    layers = [RotatingState(table, 16) for _ in range(3)]
    for row, length in enumerate(lengths):
        table.join()
        if length:
            table.begin(range(row, row + 1), length)
            for heads, layer in enumerate(layers, 1):
                layer.update_and_fetch(*[mx.zeros((1, heads, length, 2))] * 2)
            table.commit()
    table.begin(range(len(lengths)), columns)
    mask = layers[1].make_mask(columns, return_array=True)
    assert isinstance(mask, mx.array)
    for heads, layer in enumerate(layers, 1):
        seen = layer.update_and_fetch(*[mx.zeros((len(lengths), heads, columns, 2))] * 2)
        assert {array.shape[2] for array in seen} == {mask.shape[-1]}


def test_one_row_alone_needs_no_mask_and_reads_its_window_only() -> None:
    table = RowTable()
    layer = RotatingState(table, 16)
    table.join()
    for _ in range(TOKENS):
        table.begin(range(1), 1)
        assert layer.make_mask(1) is None
        seen, _ = layer.update_and_fetch(*[mx.zeros((1, 1, 1, 2))] * 2)
        assert seen.shape[2] == min(16, table.lengths[0] + 1)
        table.commit()


def test_a_long_piece_enlarges_no_row() -> None:
    table = RowTable()
    layer = RotatingState(table, 16)
    table.join()
    table.begin(range(1), 5000)
    layer.update_and_fetch(*[mx.zeros((1, 1, 5000, 2))] * 2)
    table.commit()
    assert layer.keys is not None
    assert layer.keys.shape[2] <= 2 * 16 + ROLLBACK


def test_what_a_long_piece_leaves_is_evaluated_with_the_state_before_the_commit() -> None:
    table = RowTable()
    layer = RotatingState(table, 16)
    table.join()
    table.begin(range(1), 5000)
    layer.update_and_fetch(*[mx.ones((1, 1, 5000, 2))] * 2)
    assert {array.shape[-2] for array in layer.arrays()} > {layer.kept()[0].shape[-2]}
    table.commit()
    assert layer.kept() == []


@pytest.mark.parametrize("panel", [192, 384])
@pytest.mark.parametrize("window", [64, 128, 200, 256, 300, 480, 512, 700])
def test_what_is_read_and_its_mask_agree_whatever_the_panel(window: int, panel: int) -> None:
    table = RowTable(sum_panel=panel)
    state = RotatingState(table, window)
    table.join()
    table.join()
    for counts in ([200, 150], [1, 1], [225, 3], [16, 16], [1, 1], [90, 400], [1, 1]):
        table.begin(range(2), max(counts), counts)
        state.prepare()
        new = mx.ones((2, 1, max(counts), 4))
        keys, _ = state.update_and_fetch(new, new)
        mask = state.make_mask(max(counts), return_array=True)
        assert isinstance(mask, mx.array)
        assert keys.shape[2] == mask.shape[-1]
        mx.eval(state.arrays())
        table.commit()
