"""Angles that are shared give the same bits as each layer's own."""

from itertools import product
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from bramley.worker.models.rope import SharedRope, share_angles
from support import architectures
from support.arrays import floats

SHAPES = list(product((False, True), (10000.0, 500000.0), (1.0, 0.25), ((16, 16), (8, 16))))


class Layers(nn.Module):
    """Two layers of one rotation, and one of another."""

    def __init__(self, dims: int, base: float, scale: float, *, traditional: bool) -> None:
        super().__init__()
        self.layers = [nn.RoPE(dims, traditional, base, scale) for _ in range(2)]
        self.other = nn.RoPE(dims, traditional, 2 * base, scale)


@pytest.mark.parametrize(("traditional", "base", "scale", "sizes"), SHAPES)
def test_shared_angles_are_the_same_bits(
    traditional: bool, base: float, scale: float, sizes: tuple[int, int]
) -> None:
    dims, size = sizes
    own, shared = (Layers(dims, base, scale, traditional=traditional) for _ in range(2))
    share_angles(shared)
    pairs = list(zip([*own.layers, own.other], [*shared.layers, shared.other], strict=True))
    offsets: list[int | mx.array] = [0, 7, mx.array([3, 900, 17]), mx.array([4, 900, 17]), 7]
    offsets.append(mx.array(7))
    for columns, offset in product((1, 5), offsets):
        x = mx.random.normal((3, 2, columns, size), key=mx.random.key(columns))
        for theirs, ours in pairs:
            assert isinstance(ours, SharedRope)
            np.testing.assert_array_equal(
                floats(ours(x, offset)), floats(theirs(x, cast("int", offset)))
            )


def test_layers_share_one_forward_s_angles() -> None:
    model = architectures.build("llama")
    share_angles(model)
    modules = cast("list[tuple[str, nn.Module]]", model.named_modules())
    ropes = [module for _, module in modules if isinstance(module, SharedRope)]
    assert len(ropes) > 1
    assert len({id(rope.angles) for rope in ropes}) == 1
