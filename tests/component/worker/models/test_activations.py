"""Activations and convolutions of prompts are mlx-lm's numbers, and a decode step its bits."""

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import llama

from bramley.worker.models.activations import ShortConv1d, quicken_activations, silu
from support import architectures
from support.arrays import floats
from support.tiny_models import build, parameters

mlx_silu: Callable[[mx.array], mx.array] = cast("Any", nn).silu
TOKENS = mx.array([[(token * 37) % 200 + 20 for token in range(40)]])


def test_silu_is_within_a_few_millionths() -> None:
    x = mx.concatenate([mx.linspace(-200, 200, 100_001), mx.array([0.0, -1e30, 1e30])])[None]
    np.testing.assert_allclose(floats(silu(x)), floats(mlx_silu(x)), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("columns", [4, 5, 40])
def test_a_short_convolution_is_what_it_was(columns: int, bias: bool) -> None:
    conv = nn.Conv1d(16, 16, 4, groups=16, bias=bias)
    if bias:
        conv.bias = mx.random.normal((16,), key=mx.random.key(1))
    x = mx.random.normal((3, columns, 16), key=mx.random.key(columns))
    expected = floats(conv(x))
    assert quicken_activations(cast("Any", nn.Sequential(conv))) == 1
    assert type(conv) is ShortConv1d
    np.testing.assert_allclose(floats(conv(x)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "conv",
    [nn.Conv1d(16, 16, 4), nn.Conv1d(16, 16, 4, groups=16, padding=1), nn.Conv1d(8, 16, 4)],
)
def test_other_convolutions_are_left_alone(conv: nn.Module) -> None:
    assert quicken_activations(cast("Any", nn.Sequential(conv))) == 0


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_oss", "gemma3_text", "hybrid"])
def test_logits_stay_what_they_were(name: str) -> None:
    plain, quick = (
        cast("Any", build("hybrid") if name == "hybrid" else architectures.build(name))
        for _ in range(2)
    )
    before = parameters(quick)
    changed = quicken_activations(quick)
    assert (changed > 0) == (name in {"llama", "qwen3", "hybrid"})
    assert all(array is before[key] for key, array in parameters(quick).items())
    expected, found = floats(plain(TOKENS)), floats(quick(TOKENS))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_a_decode_step_is_the_same_bits() -> None:
    plain, quick = (cast("Any", build("hybrid")) for _ in range(2))
    quicken_activations(quick)
    ids = mx.array([[7], [9]])
    np.testing.assert_array_equal(floats(quick(ids)), floats(plain(ids)))


def test_a_row_is_the_same_bits_in_any_batch() -> None:
    layer = llama.MLP(llama.ModelArgs("llama", 64, 1, 128, 4, 1e-5, 100))
    quicken_activations(layer)
    x = mx.random.normal((5, 7, 64), key=mx.random.key(1))
    np.testing.assert_array_equal(floats(layer(x)[2:3, :4]), floats(layer(x[2:3, :4])))


def test_half_precision_is_left_to_mlx_lm() -> None:
    x = mx.random.normal((1, 9, 16), key=mx.random.key(1)).astype(mx.bfloat16)
    assert silu(x).dtype == mx.bfloat16
    assert mx.array_equal(silu(x), mlx_silu(x)).item()


def test_mlx_lm_is_not_touched_nor_another_model() -> None:
    one, other = (architectures.build("llama") for _ in range(2))
    quicken_activations(one)
    expected = floats(cast("Any", other)(TOKENS))
    np.testing.assert_array_equal(
        expected, floats(cast("Any", architectures.build("llama"))(TOKENS))
    )
    assert not np.array_equal(expected, floats(cast("Any", one)(TOKENS)))


def test_processors_of_other_makes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert quicken_activations(build("hybrid")) == 0
