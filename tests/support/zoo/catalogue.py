"""Every model file of mlx-lm as a tiny random model, or why there is none.

A config is called ``FILE`` or ``FILE VARIANT``, where a variant is another way through the same
file. Models are of float32 and drawn as in tiny_models.py.
"""

import copy
from collections.abc import Iterator
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx import utils as trees
from mlx_lm import utils as mlx_lm
from mlx_lm.utils import MODEL_REMAPPING

from support.tiny_models import greedy, parameters
from support.zoo import dense, experts, latent, recurrent, windowed
from support.zoo.shapes import Config

CONFIGS: dict[str, Config] = {
    name: config
    for family in (dense, windowed, experts, latent, recurrent)
    for name, config in family.CONFIGS.items()
}
UNBUILT: dict[str, str] = {
    "bitnet": "its layers make a Metal kernel when they are built",
    "muse_spark": "its layers make a Metal kernel when they are built",
    "olmo": "needs the package ai2-olmo",
    "prism_hadamard_qwen35": "needs a manifest of packed weights; what it computes is qwen3_5",
}
# Files of the folder that are no models, but parts of some.
PARTS = frozenset(
    {
        "__init__",
        "activations",
        "base",
        "bitlinear_layers",
        "cache",
        "gated_delta",
        "mla",
        "pipeline",
        "rope_utils",
        "ssm",
        "switch_layers",
    }
)
# Where seed 0 gives a text that soon repeats itself.
_SEEDS = {
    "cohere": 3,
    "gemma3n": 1,
    "gpt2": 3,
    "gpt_bigcode": 1,
    "minimax": 2,
    "nanochat": 1,
    "olmoe": 2,
    "phi3small": 1,
    "qwen3_moe": 1,
    "qwen3_vl_moe": 1,
    "rwkv7": 2,
    "stablelm": 3,
}
# Their output matrix is their embedding's, so each token would call for itself again: the last
# norm's gains, which are added to the number here, are made to differ in sign.
_CALL_FOR_THEMSELVES = {
    "gemma2": ("model.norm.weight", 1),
    "gemma3n": ("model.language_model.norm.weight", 0),
}


def file_of(name: str) -> str:
    """Return the model file of a config, without its ending."""
    kind = str(CONFIGS[name]["model_type"])
    remapped: dict[str, str] = MODEL_REMAPPING
    return remapped.get(kind, kind)


def build(name: str, seed: int = 0) -> nn.Module:
    """Make a model, by mlx-lm's own class, whose greedy text has variety."""
    config = copy.deepcopy(CONFIGS[name])
    model_class, args_class = cast("Any", mlx_lm)._get_classes(config)
    model: nn.Module = model_class(args_class.from_dict(config))
    drawn = list(_drawn(model, name, seed + _SEEDS.get(name, 0)))
    model.update(cast("dict[str, Any]", trees.tree_unflatten(drawn)))
    model.eval()
    mx.eval(model.parameters())
    text = greedy(model, [1, 2, 3, 4], 20)[8:]
    assert len(set(text)) >= _variety(name), f"{name} {seed} repeats itself: {text}"
    return model


def _drawn(model: nn.Module, name: str, seed: int) -> Iterator[tuple[str, mx.array]]:
    last, gain = _CALL_FOR_THEMSELVES.get(name, ("", 0))
    key = mx.random.key(seed)
    for place, array in sorted(parameters(model).items()):
        key, own = mx.random.split(key)
        noise = mx.random.normal(array.shape, key=own)
        if not mx.issubdtype(array.dtype, mx.floating):
            yield place, array
        elif place == last:
            yield place, noise - gain
        elif array.ndim < 2:
            # Not around what it starts as, which may be zero.
            yield place, 0.3 * noise + (0 if place.endswith("bias") else 1)
        else:
            fan_in = array.size // array.shape[0]
            yield place, noise * (4 * (3 * fan_in) ** -0.5)


def _variety(name: str) -> int:
    return 3 if name == "phi3small" else 5
