"""What belongs together among tensors, what part of a model it is, and what it takes."""

import math

import pytest

from bramley.worker.models.headers import BITS, Tensor
from bramley.worker.models.weights import KINDS, OTHER, Config, kind_of, loaded_bytes, matrices


def _tensors(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {
        name: Tensor(name, dtype, shape, math.prod(shape) * BITS[dtype] // 8, "model.safetensors")
        for name, (dtype, shape) in shapes.items()
    }


def _affine(path: str, bits: int, group: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        f"{path}.weight": ("U32", (8, 256 * bits // 32)),
        f"{path}.scales": ("F16", (8, 256 // group)),
        f"{path}.biases": ("F16", (8, 256 // group)),
    }


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_scales_and_biases_count_to_the_bits_of_a_quantized_matrix(bits: int, group: int) -> None:
    config = {"quantization": {"bits": bits, "group_size": group}}
    (found,) = matrices(_tensors(**_affine("mlp.up_proj", bits, group)), config)
    assert (found.parameters, found.bits, found.group) == (8 * 256, bits, group)
    assert found.nbytes * 8 / found.parameters == bits + 32 / group
    assert found.float32_bytes == 8 * 256 * 4


def test_a_layer_that_is_quantized_otherwise_is_counted_by_its_own_groups() -> None:
    config: Config = {
        "quantization": {
            "bits": 4,
            "group_size": 64,
            "lm_head": {"bits": 8, "group_size": 32},
        }
    }
    tensors = _tensors(**_affine("mlp.up_proj", 4, 64), **_affine("lm_head", 8, 32))
    found = {one.name: (one.bits, one.group) for one in matrices(tensors, config)}
    assert found == {"mlp.up_proj.weight": (4, 64), "lm_head.weight": (8, 32)}


def test_awq_and_published_mxfp4_are_matrices_too() -> None:
    config: Config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    tensors = _tensors(
        **{
            "q_proj.qweight": ("I32", (256, 4)),
            "q_proj.scales": ("F16", (2, 32)),
            "q_proj.qzeros": ("I32", (2, 4)),
            "experts.up_blocks": ("U8", (2, 8, 16)),
            "experts.up_scales": ("U8", (2, 8)),
        }
    )
    awq, mxfp4 = matrices(tensors, config)
    assert (awq.parameters, awq.nbytes) == (256 * 32, 4096 + 128 + 32)
    assert (mxfp4.parameters, mxfp4.nbytes * 8 / mxfp4.parameters) == (512, 4.25)


def test_what_is_not_quantized_is_as_it_is_and_integers_stay_integers() -> None:
    tensors = _tensors(
        **{
            "a.weight": ("BF16", (4, 4)),
            "a.bias": ("F32", (4,)),
            "ids": ("U32", (4,)),
            "b.scales": ("F16", (2,)),
        }
    )
    found = list(matrices(tensors, {}))
    assert [one.name for one in found] == list(tensors)
    assert loaded_bytes(found, on_cpu=False) == 32 + 16 + 16 + 4
    assert loaded_bytes(found, on_cpu=True) == 64 + 16 + 16 + 8


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"quantization": None},
        {"quantization": []},
        {"quantization": {"group_size": "many", "bits": -1}},
        {"quantization": {"group_size": 0, "bits": True}},
        {"quantization": {"group_size": 1 << 70}},
    ],
)
def test_a_configuration_that_tells_no_groups_costs_no_fault(config: Config) -> None:
    (found,) = matrices(_tensors(**_affine("x", 4, 64)), config)
    assert found.nbytes == 8 * 256 // 2 + 2 * 8 * 4 * 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("token_embd.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("output.weight", "head"),
        ("output_norm.weight", "norms"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("transformer.h.0.ln_1.weight", "norms"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("blk.0.attn_q.weight", "attention"),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", "recurrent"),
        ("backbone.layers.0.mixer.A_log", "recurrent"),
        ("model.layers.0.mlp.switch_mlp.up_proj.weight", "experts"),
        ("model.layers.0.mlp.gate.weight", "experts"),
        ("model.layers.0.mlp.gate_proj.weight", "MLP"),
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.0.ffn_down.weight", "MLP"),
        ("vision_tower.blocks.0.attn.weight", "vision and audio"),
        ("something", OTHER),
    ],
)
def test_a_name_tells_what_part_of_a_model_a_tensor_is(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert kind in KINDS
