"""One tiny random model of each architecture: mlx-lm's own file, both kinds of layer, window 8.

Drawn as in tiny_models.py. Heads share keys and values where the architecture can, rotation is
partial or absent where it can be, and of four experts two are used.
"""

import importlib
from typing import Any

from mlx import nn
from mlx_lm.utils import MODEL_REMAPPING

from bramley.worker.cache.build import build_states
from bramley.worker.cache.contract import LayerState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.mlx_lm import layer_caches
from support.tiny_models import draw, greedy

VOCABULARY = 300
WINDOW = 8

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_MIXED = ["sliding_attention", "full_attention"]

_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"layer_types": _MIXED, "sliding_window": WINDOW},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"partial_rotary_factor": 0.5},
    "olmo2": {},
    "smollm3": {"no_rope_layer_interval": 2},  # every second layer has no positions
    "gemma2": {"query_pre_attn_scalar": 16.0},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16.0,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,  # the last two read the keys of the first two
        "layer_types": _MIXED * 2,
        "sliding_window": WINDOW,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "gpt_oss": {
        "layer_types": _MIXED,
        "sliding_window": WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "exaone4": {
        "num_hidden_layers": 3,
        "rope_scaling": None,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LGL",
    },
}
NAMES = tuple(_OWN)


def build(name: str, seed: int = 0) -> nn.Module:
    """Make a model whose greedy text has variety."""
    files: Any = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
    config = {"model_type": name, **_SHAPE, **_OWN[name]}
    model: Any = files.Model(files.ModelArgs.from_dict(config))
    draw(model, seed)
    if name == "gemma2":
        # Its output matrix is its embedding's, so each token would call for itself again: the
        # last norm's gains (1 + weight) are made to differ in sign.
        last = model["model"]["norm"]
        last["weight"] = 4 * (last["weight"] - 1) - 1
    assert len(set(greedy(model, [1, 2, 3, 4], 24)[12:])) >= 6, f"{name} {seed} repeats itself"
    return model


def states(model: nn.Module, table: RowTable) -> list[LayerState]:
    """Make one state a layer, of the kind that the layer asks for."""
    return build_states(table, layer_caches(model))
