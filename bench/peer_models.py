"""Models as mlx-lm itself makes them: of a folder, or of random weights."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm import utils
from mlx_lm.models import llama

SHAPES: dict[str, dict[str, Any]] = {
    "3b": {  # Llama 3.2 3B
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 12,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 1024,
    },
}
COMMON = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def build(shape: str, dtype: mx.Dtype) -> nn.Module:
    """Make a model of random weights, evaluated: speed depends on shapes alone."""
    model = llama.Model(llama.ModelArgs.from_dict({**COMMON, **SHAPES[shape]}))
    model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model


def load(folder: Path) -> nn.Module:
    """Load a model folder."""
    return utils.load_model(folder)[0]
