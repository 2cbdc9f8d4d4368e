"""What stands in for slow activations gives what MLX's own do, and only where it is meant to."""

from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import activations

from bramley.worker.models.activations import ShortConv1d, silu
from bramley.worker.models.gated_delta import fast_prefill
from support.arrays import floats
from support.tiny_models import build

WIDE = mx.linspace(-120, 120, 100_001)[None, :, None]


def named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return cast("list[tuple[str, nn.Module]]", model.named_modules())


def error(found: mx.array) -> float:
    """Largest relative error of what should be silu of WIDE, where float32 holds it in full."""
    x = floats(WIDE).astype(np.float64)
    right = x / (1 + np.exp(-x))
    told = np.abs(right) > 1e-30
    return float((np.abs(floats(found) - right)[told] / np.abs(right)[told]).max())


def test_silu_is_as_exact_as_mlx_s_own_where_it_matters() -> None:
    near = np.abs(floats(WIDE)) < 20
    ours, theirs = floats(silu(WIDE))[near], floats(cast("mx.array", nn.silu(WIDE)))[near]
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)
    assert error(silu(WIDE)) < 1e-5


def test_silu_of_what_is_no_number_or_too_large_is_what_mlx_gives() -> None:
    odd = mx.array([[0.0, -0.0, -1e4, 1e4, -3e38, 3e38, float("inf"), float("nan")]])
    np.testing.assert_array_equal(floats(silu(odd)), floats(cast("mx.array", nn.silu(odd))))


@pytest.mark.parametrize(
    "x", [mx.ones((3, 1, 8)) * 0.3, (mx.ones((1, 9, 8)) * 0.3).astype(mx.bfloat16)]
)
def test_decode_steps_and_other_precisions_are_mlx_s_own(x: mx.array) -> None:
    assert mx.array_equal(silu(x), cast("mx.array", nn.silu(x)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("columns", [4, 5, 40])
def test_taps_give_what_a_convolution_gives(columns: int, bias: bool) -> None:
    plain = nn.Conv1d(24, 24, 4, groups=24, bias=bias)
    ours = nn.Conv1d(24, 24, 4, groups=24, bias=bias)
    ours.update(plain.parameters())
    ours.__class__ = ShortConv1d
    x = mx.random.normal((2, columns, 24), key=mx.random.key(1))
    np.testing.assert_allclose(floats(ours(x)), floats(plain(x)), rtol=0, atol=2e-6)


def test_a_row_s_bits_depend_on_no_other_column() -> None:
    conv: Any = nn.Conv1d(24, 24, 4, groups=24, bias=False)
    conv.__class__ = ShortConv1d
    x = mx.random.normal((1, 43, 24), key=mx.random.key(1))
    whole = floats(silu(conv(x)))
    parts = [floats(silu(conv(x[:, start : stop + 3]))) for start, stop in ((0, 16), (16, 40))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_only_recurrent_layers_are_changed() -> None:
    plain, fast = build("hybrid"), build("hybrid")
    fast_prefill(fast)
    pairs = zip(named(plain), named(fast), strict=True)
    changed = {name for (name, one), (_, other) in pairs if type(one) is not type(other)}
    mixer = "language_model.model.layers.0.linear_attn"
    assert changed == {mixer, f"{mixer}.conv1d", f"{mixer}.norm"}


def test_a_gate_is_what_mlx_lm_s_is() -> None:
    fast = build("hybrid")
    fast_prefill(fast)
    norm = cast("Any", fast)["language_model"]["model"]["layers"][0]["linear_attn"]["norm"]
    x, gate = (mx.random.normal((2, 9, 2, 32), key=mx.random.key(n)) for n in (1, 2))
    plain: mx.array = cast("Any", activations).precise_swiglu(
        x, gate, mx.fast.rms_norm(x, norm.weight, norm.eps)
    )
    np.testing.assert_allclose(floats(norm(x, gate)), floats(plain), rtol=2e-6, atol=1e-7)
    assert mx.array_equal(norm(x[:, :1], gate[:, :1]), plain[:, :1])
