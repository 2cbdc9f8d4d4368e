"""Makes a model folder that mlx-lm loads out of a GGUF file of the llama family.

``python -m bramley.worker.models.gguf FILE.gguf FOLDER``. Weights stay quantized as they are;
the folder appears whole or not at all.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import mlx.core as mx

from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf_header import GROUP, GgufHeader, Length, made_of
from bramley.worker.models.gguf_tokenizer import write_tokenizer

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_NEEDED = (
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
)


class Shaped(Protocol):
    """What is asked of an array before its values count."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        ...


Arrays = dict[str, mx.array]
Facts = dict[str, Any]


def import_gguf(file: Path, folder: Path) -> None:
    """Write ``file``'s model into ``folder``, unless a whole model lies there already.

    Several processes may do so at once: one's folder stays, and it is whole.

    Raises:
        ModelError: ``file`` is not a GGUF, or not of a kind that can be imported.
    """
    if _is_whole(folder):
        return
    arrays, facts = _read(file)
    config = _config(arrays, facts)
    weights = {_renamed(name): array for name, array in arrays.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        write_tokenizer(facts, draft)
        _write_json(draft / "config.json", config)
        _write_json(draft / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        mx.save_safetensors(str(draft / "model.safetensors"), weights, {"format": "mlx"})
        draft.chmod(0o755)
        _publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_stand_in(header: GgufHeader, folder: Path) -> None:
    """Write what ``import_gguf`` would, but for the tokenizer and for the weights' values.

    Args:
        header: of a GGUF file.
        folder: an empty one; its weight file is all hole, and takes no room on the disk.

    Raises:
        ModelError: the file is not of a kind that can be imported.
    """
    family = header.facts.get("general.architecture")
    if family != "llama":
        raise ModelError(f"it is of the family {family!r}; only 'llama' can be imported")
    made = [each for tensor in header.tensors.values() for each in made_of(tensor)]
    lists = sorted(key for key in header.facts if isinstance(header.facts[key], Length))
    if listed := [key for key in lists if key.startswith("llama.")]:
        raise ModelError(f"the GGUF states {listed[0]} for each layer, which is not imported")
    _write_json(folder / "config.json", _config({one.name: one for one in made}, {**header.facts}))
    entries: Facts = {}
    end = 0
    for one in made:
        offsets = [end, end := end + one.nbytes]
        entries[_renamed(one.name)] = {
            "dtype": one.dtype,
            "shape": one.shape,
            "data_offsets": offsets,
        }
    text = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if not _is_whole(folder):
            raise ModelError(f"{folder} exists and is not a whole model folder") from error


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.json", "model.safetensors"))


def _write_json(path: Path, value: Facts) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(file: Path) -> tuple[Arrays, Facts]:
    if not file.is_file():
        raise ModelError(f"{file} is not a file")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelError(f"{file} is not a GGUF file")
    try:
        loaded = mx.load(str(file), format="gguf", return_metadata=True)
        arrays, facts = cast("tuple[Arrays, Facts]", loaded)
        mx.eval(arrays)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    family = facts.get("general.architecture")
    if family != "llama":
        raise ModelError(f"{file} is of the family {family!r}; only 'llama' can be imported")
    return arrays, {key: _plain(value) for key, value in facts.items()}


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, mx.array) else value


def _renamed(name: str) -> str:
    *path, part, leaf = name.split(".")
    prefix = f"model.layers.{path[1]}." if path[:1] == ["blk"] and len(path) == 2 else ""
    if part not in _NAMES or bool(path) != bool(prefix):
        raise ModelError(f"the tensor {name!r} belongs to no plain llama")
    return f"{prefix}{_NAMES[part]}.{leaf}"


def _config(arrays: Mapping[str, Shaped], facts: Facts) -> Facts:
    own = {key.removeprefix("llama."): value for key, value in facts.items()}
    missing = [name for name in _NEEDED if name not in own]
    if missing:
        raise ModelError(f"the GGUF does not state llama.{missing[0]}")
    heads, width = own["attention.head_count"], own["embedding_length"]
    head_dim = own.get("attention.key_length", width // heads)
    scaling = own.get("rope.scaling.type", "none")
    if own.get("rope.dimension_count", head_dim) != head_dim or scaling != "none":
        raise ModelError("the GGUF rotates positions in a way that is not imported")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": own["block_count"],
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "vocab_size": arrays["token_embd.weight"].shape[0],
        "max_position_embeddings": own["context_length"],
        "rope_theta": own.get("rope.freq_base", 10000.0),
        "rope_traditional": True,  # the file's rows of q and k are in that order
        "attention_bias": "blk.0.attn_q.bias" in arrays,
        "tie_word_embeddings": "output.weight" not in arrays,
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        **_quantization(arrays),
    }


def _quantization(arrays: Mapping[str, Shaped]) -> Facts:
    bits: dict[str, int] = {}
    for name, scales in arrays.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "scales":
            columns = scales.shape[-1] * GROUP
            bits[layer] = arrays[f"{layer}.weight"].shape[-1] * 32 // columns
    if not bits:
        return {}
    usual = max(set(bits.values()), key=list(bits.values()).count)
    table: Facts = {"group_size": GROUP, "bits": usual}
    for layer, number in sorted(bits.items()):
        if number != usual:
            path = _renamed(f"{layer}.weight").removesuffix(".weight")
            table[path] = {"group_size": GROUP, "bits": number}
    return {"quantization": table}


def main() -> int:
    """Import the file that the command line names.

    Returns:
        0, or 2 with a sentence on stderr.
    """
    parser = argparse.ArgumentParser(description="Import a GGUF file of the llama family.")
    parser.add_argument("file", type=Path, help="a .gguf file")
    parser.add_argument("folder", type=Path, help="the model folder to write")
    arguments = parser.parse_args()
    try:
        import_gguf(arguments.file, arguments.folder)
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
