"""Tiny random models of each kind of state, float32, whose greedy text is not monotonous.

Small random matrices would make a model repeat one token, and parameters that start constant
would hide faults: all are drawn, the matrices four times as large as usual.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx import nn
from mlx import utils as trees
from mlx_lm.generate import generate_step
from mlx_lm.models import llama, qwen3_5

from support import byte_tokenizer

Kind = Literal["full", "sliding", "hybrid"]
KINDS: tuple[Kind, ...] = ("full", "sliding", "hybrid")

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": byte_tokenizer.VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": byte_tokenizer.EOS,
}


def config_of(kind: Kind) -> dict[str, Any]:
    """The config.json of a kind: all attention full, one layer of window 8, one recurrent."""
    if kind == "full":
        return {"model_type": "llama", **_SHAPE}
    if kind == "sliding":
        layers = ["sliding_attention", "full_attention"]
        return {"model_type": "llama", **_SHAPE, "layer_types": layers, "sliding_window": 8}
    text = {
        "model_type": "qwen3_5_text",
        **_SHAPE,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    }
    return {"model_type": "qwen3_5", "text_config": text, "eos_token_id": byte_tokenizer.EOS}


def build(kind: Kind, seed: int = 0) -> nn.Module:
    """Make a model; greedy text of printable variety, in which no end token comes by itself."""
    config = config_of(kind)
    model: nn.Module
    if kind == "hybrid":
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    else:
        model = llama.Model(llama.ModelArgs.from_dict(config))
    draw(model, seed)
    assert len(set(greedy(model, [1, 2, 3, 4], 24)[12:])) >= 6, f"{kind} {seed} repeats itself"
    return model


def draw(model: nn.Module, seed: int) -> None:
    """Draw all parameters of a model, and evaluate them."""
    model.update(cast("dict[str, Any]", trees.tree_unflatten(list(_drawn(model, seed)))))
    model.eval()
    mx.eval(model.parameters())


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """A model's parameters by their names in a weight file."""
    return dict(cast("list[tuple[str, mx.array]]", trees.tree_flatten(model.parameters())))


def greedy(model: nn.Module, prompt: list[int], count: int) -> list[int]:
    """What mlx-lm's own loop generates."""
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]


def save_tiny(folder: Path, kind: Kind, seed: int = 0) -> None:
    """Write a whole model folder that a worker can load."""
    save(folder, build(kind, seed), config_of(kind))


def save(folder: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Write a model with the byte tokenizer as a folder that a worker can load."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer.write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    weights = parameters(model)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _drawn(model: nn.Module, seed: int) -> Iterator[tuple[str, mx.array]]:
    key = mx.random.key(seed)
    for name, array in sorted(parameters(model).items()):
        key, own = mx.random.split(key)
        noise = mx.random.normal(array.shape, key=own)
        if array.ndim == 1:
            # Not around what it starts as: A_log starts random, and not from our seed.
            yield name, 0.3 * noise + (0 if name.endswith(".bias") else 1)
        elif name.endswith("lm_head.weight"):
            yield name, mx.where(mx.arange(array.shape[0])[:, None] < 256, noise, 0)
        else:
            fan_in = array.size // array.shape[0]
            yield name, noise * (4 * (3 * fan_in) ** -0.5)
