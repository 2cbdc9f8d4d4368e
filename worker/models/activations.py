"""Activations and short convolutions of prompts, where MLX is slow at them: x86 CPUs.

MLX computes exponentials there one after another, 24 ns each, and is no faster at convolutions of
four taps. Here both are made of additions and products, in a fraction of the time. A decode step
stays mlx-lm's: its few numbers are dearer to launch than to compute.
"""

import platform
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import cast

import mlx.core as mx
from mlx import nn

from bramley.worker.models.rebinding import derive, global_of, layers_that_use
from bramley.worker.sampling.weights import LOG2_E, weigh

_LEAST = -87.0  # what silu makes of less is 0 in float32


def silu(x: mx.array) -> mx.array:
    """Return ``x * sigmoid(x)``, (B, L, ...), within 3e-6 of it."""
    if not _is_prompt(x):
        return cast("mx.array", nn.silu(x))
    return x / (1 + weigh(mx.maximum(x, _LEAST), _NOUGHT, -LOG2_E))


def _is_prompt(x: mx.array) -> bool:
    # Not by how many numbers there are: a row must be the same bits in any batch.
    return x.shape[1] > 1 and x.dtype == mx.float32


_NOUGHT = mx.array(0.0)


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


def quicken_activations(model: nn.Module) -> int:
    """Replace the slow parts of a loaded float32 model, on its instances, on an x86 CPU only.

    Args:
        model: of any architecture; its parameters stay where they are.

    Returns:
        How many layers were changed.
    """
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    if not on_cpu or platform.machine() not in {"x86_64", "AMD64"}:
        return 0
    changed = 0
    for name, stand_in in _STAND_INS.items():
        for layer in list(layers_that_use(model, name)):
            layer.__class__ = stand_in(type(layer))
            changed += 1
    for _, module in cast("list[tuple[str, nn.Module]]", model.named_modules()):
        if type(module) is nn.Conv1d and _is_short(module):
            module.__class__ = ShortConv1d
            changed += 1
    return changed


@cache
def _with_silu(layer: type[nn.Module]) -> type[nn.Module]:
    """Derive a layer whose ``nn.silu`` is ours."""
    return derive(layer, {"nn": SimpleNamespace(**{**vars(nn), "silu": silu})})


def _with_gate(name: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Derive layers whose function of that name, of (..., gate, x), is ours."""

    @cache
    def derived(layer: type[nn.Module]) -> type[nn.Module]:
        own = global_of(layer, name)

        def gated(*arguments: mx.array) -> mx.array:
            gate, x = arguments[-2:]
            return silu(gate) * x if _is_prompt(gate) else own(*arguments)

        return derive(layer, {name: gated})

    return derived


_STAND_INS = {
    "silu": _with_silu,
    "swiglu": _with_gate("swiglu"),
    "precise_swiglu": _with_gate("precise_swiglu"),
}


def _is_short(conv: nn.Conv1d) -> bool:
    channels, _, of_each = conv.weight.shape
    plain = (conv.stride, conv.padding, conv.dilation) == (1, 0, 1)
    return plain and of_each == 1 and conv.groups == channels
