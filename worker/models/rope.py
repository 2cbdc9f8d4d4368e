"""Rotary positions where MLX has no kernel for them: angles are made once a forward.

On the CPU ``mx.fast.rope`` makes every angle anew for queries and keys of every layer. Modules
of equal parameters share their angles here; what they give is the same bits.
"""

import math
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from mlx import nn
from mlx import utils as trees


@dataclass(frozen=True, slots=True)
class Rotation:
    """Parameters of ``nn.RoPE``."""

    dims: int
    traditional: bool
    base: float
    scale: float


class Angles:
    """Cosines and sines of the newest forward, for modules of one rotation.

    A forward hands every layer the same ``offset``, one integer or one array, and no other
    forward has that array: it is held here as long as it is the newest.
    """

    def __init__(self, rotation: Rotation) -> None:
        half = rotation.dims // 2
        steps = mx.arange(0, -half, -1, dtype=mx.float32)
        self._frequencies = mx.exp(steps * (math.log(rotation.base) / half))
        mx.eval(self._frequencies)
        self._scale = rotation.scale
        self._of: tuple[int | mx.array, int] | None = None
        self._newest: tuple[mx.array, mx.array]

    def at(self, offset: int | mx.array, columns: int) -> tuple[mx.array, mx.array]:
        """Return cosines and sines, (L, dims / 2) or (B, 1, L, dims / 2)."""
        if self._of is None or not _same(self._of, (offset, columns)):
            places = mx.arange(columns, dtype=mx.float32)
            # Some files make an array of the one offset of all rows.
            first = offset if isinstance(offset, int) else offset.reshape(-1, 1, 1)
            turned = ((places + first) * self._scale)[..., None] * self._frequencies
            self._of, self._newest = (offset, columns), (mx.cos(turned), mx.sin(turned))
        return self._newest


def _same(one: tuple[int | mx.array, int], other: tuple[int | mx.array, int]) -> bool:
    if one[1] != other[1]:
        return False
    if isinstance(one[0], int) and isinstance(other[0], int):
        return one[0] == other[0]
    return one[0] is other[0]


class SharedRope(nn.RoPE):
    """Stands for an ``nn.RoPE`` of float32 inputs, (B, heads, L, D)."""

    def __init__(self, rotation: Rotation, angles: Angles) -> None:
        super().__init__(rotation.dims, rotation.traditional, rotation.base, rotation.scale)
        self.angles = angles

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate the first ``dims`` of each head."""
        dims = self.dims
        cos, sin = self.angles.at(offset, x.shape[-2])
        if self.traditional:
            one, other = x[..., 0:dims:2], x[..., 1:dims:2]
        else:
            one, other = x[..., : dims // 2], x[..., dims // 2 : dims]
        parts = [one * cos - other * sin, one * sin + other * cos]
        if self.traditional:
            parts = [mx.flatten(mx.stack(parts, axis=-1), -2)]
        if dims < x.shape[-1]:
            parts.append(x[..., dims:])
        return mx.concatenate(parts, axis=-1)


def share_angles(model: nn.Module) -> None:
    """Replace every ``nn.RoPE`` of a float32 model."""
    shared: dict[Rotation, Angles] = {}
    replaced: list[tuple[str, nn.Module]] = []
    for name, module in cast("list[tuple[str, nn.Module]]", model.named_modules()):
        if type(module) is nn.RoPE:
            rotation = Rotation(module.dims, module.traditional, module.base, module.scale)
            if rotation not in shared:
                shared[rotation] = Angles(rotation)
            replaced.append((name, SharedRope(rotation, shared[rotation])))
    model.update_modules(trees.tree_unflatten(replaced))
