"""What is slow beside the gated delta rule on a CPU, in a prompt's forwards: exponentials, taps.

MLX's CPU backend computes ``exp`` one number after another, and is no quicker at a convolution
of four taps. A power of two is quicker, and as exact; and the taps are four products. A decode
step stays mlx-lm's: its few numbers are dearer to launch than to compute.
"""

import math
from functools import cache
from types import SimpleNamespace
from typing import cast

import mlx.core as mx
from mlx import nn

from bramley.worker.models.rebinding import derive, global_of, reads

_SCALE = -math.log2(math.e)


def silu(x: mx.array) -> mx.array:
    """Return ``x * sigmoid(x)``, (B, L, ...), as near to it as MLX's own."""
    if not _is_prompt(x):
        return cast("mx.array", nn.silu(x))
    return x / (1 + mx.power(_TWO, x * _SCALE))


def _is_prompt(x: mx.array) -> bool:
    # Not by how many numbers there are: a row must be the same bits in any batch.
    return x.shape[1] > 1 and x.dtype == mx.float32


_TWO = mx.array(2.0)


class ShortConv1d(nn.Conv1d):
    """A convolution of each channel by itself, (B, L, C), without padding."""

    def __call__(self, x: mx.array) -> mx.array:
        """Convolve."""
        taps = self.weight.shape[1]
        columns = x.shape[1] - taps + 1
        if columns <= 1:
            return super().__call__(x)
        y = x[:, :columns] * self.weight[:, 0, 0]
        for tap in range(1, taps):
            y = y + x[:, tap : tap + columns] * self.weight[:, tap, 0]
        return y + self.bias if "bias" in self else y


def quicken(layer: nn.Module) -> None:
    """Let a layer and what it is made of compute so; its parameters stay where they are."""
    for _, part in cast("list[tuple[str, nn.Module]]", layer.named_modules()):
        stand_in = _stand_in(part)
        if stand_in is not None:
            part.__class__ = stand_in


_GATE = "precise_swiglu"


def _stand_in(part: nn.Module) -> type[nn.Module] | None:
    if type(part) is nn.Conv1d:
        return ShortConv1d if _is_short(part) else None
    if reads(part, "silu"):
        return _with_silu(type(part))
    return _with_gate(type(part)) if reads(part, _GATE) else None


@cache
def _with_silu(layer: type[nn.Module]) -> type[nn.Module]:
    """Derive a layer whose ``nn.silu`` is ours."""
    return derive(layer, {"nn": SimpleNamespace(**{**vars(nn), "silu": silu})})


@cache
def _with_gate(layer: type[nn.Module]) -> type[nn.Module]:
    """Derive a norm whose gate is ours."""
    own = global_of(layer, _GATE)

    def gated(like: mx.array, gate: mx.array, x: mx.array) -> mx.array:
        return silu(gate) * x if _is_prompt(gate) else own(like, gate, x)

    return derive(layer, {_GATE: gated})


def _is_short(conv: nn.Conv1d) -> bool:
    channels, _, of_each = conv.weight.shape
    plain = (conv.stride, conv.padding, conv.dilation) == (1, 0, 1)
    return plain and of_each == 1 and conv.groups == channels
