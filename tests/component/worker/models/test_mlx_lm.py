"""Model folders, whole and broken, and what mlx-lm is relied on for."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn

from bramley.worker.models import mlx_lm
from bramley.worker.models.errors import ModelError
from support import tiny_models
from support.tiny_models import KINDS, Kind, parameters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_models.save_tiny(tmp_path, "full")
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tiny_model_is_loaded_bit_by_bit(tmp_path: Path, kind: Kind) -> None:
    tiny_models.save_tiny(tmp_path, kind, seed=3)
    loaded = mlx_lm.load_model(tmp_path, dequantize=True)
    saved = parameters(tiny_models.build(kind, seed=3))
    for name, array in parameters(loaded.model).items():
        assert mx.array_equal(array, saved[name]), name
    assert (loaded.vocabulary, loaded.dtype, loaded.context_tokens) == (260, "float32", 4096)


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("full", ["full", "full"]),
        ("sliding", ["rotating", "full"]),
        ("hybrid", ["recurrent", "full"]),
    ],
)
def test_layers_tell_the_kind_of_their_state(kind: Kind, states: list[str]) -> None:
    layers = mlx_lm.layer_caches(tiny_models.build(kind))
    assert [layer.kind for layer in layers] == states
    assert {layer.window for layer in layers if layer.kind == "rotating"} <= {8}


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantized_layers_become_float32_without_another_rounding(
    tmp_path: Path, mode: str
) -> None:
    tiny_models.save_tiny(tmp_path, "full")
    model = tiny_models.build("full")
    nn.quantize(model, group_size=32, bits=4, mode=mode)
    weights = {
        name: array.astype(mx.bfloat16) if array.dtype == mx.float32 else array
        for name, array in parameters(model).items()
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, {"format": "mlx"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4, "mode": mode}
    (tmp_path / "config.json").write_text(json.dumps(config))

    loaded = mlx_lm.load_model(tmp_path, dequantize=True)
    name = "model.layers.0.mlp.up_proj"
    scales, biases = weights[f"{name}.scales"], weights.get(f"{name}.biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    exact = mx.dequantize(weights[f"{name}.weight"], scales, biases, 32, 4, mode)
    assert mx.array_equal(parameters(loaded.model)[f"{name}.weight"], exact)
    assert {array.dtype for array in parameters(loaded.model).values()} == {mx.float32}
    kept = mlx_lm.load_model(tmp_path, dequantize=False)
    assert mx.uint32 in {array.dtype for array in parameters(kept.model).values()}


@pytest.mark.parametrize(("kind", "told"), [("full", 0), ("hybrid", 1)])
def test_where_prompts_are_not_taken_in_chunks_the_log_says_so_once(
    tmp_path: Path,
    kind: Kind,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny_models.save_tiny(tmp_path, kind)
    with caplog.at_level("INFO"):
        mlx_lm.load_model(tmp_path, dequantize=True)
        assert "not in chunks" not in caplog.text
        monkeypatch.setattr(mx.metal, "is_available", lambda: True)
        mlx_lm.load_model(tmp_path, dequantize=True)
    lines = [line for line in caplog.records if "not in chunks" in line.message]
    assert len(lines) == told
    assert all(vars(line)["facts"] == {"recurrent_layers": 1, "in_chunks": 0} for line in lines)


def test_end_tokens_and_defaults_come_from_every_file(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"eos_token_id": 0, "text_config": {"eos_token_id": [5]}}
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"eos_token_id": [7, 8], "temperature": 0.6, "top_k": 20, "other": "x"}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    loaded = mlx_lm.load_model(folder, dequantize=False)
    assert loaded.config_eos_token_ids == {0, 5, 7, 8}
    assert loaded.generation_defaults == {"temperature": 0.6, "top_k": 20.0}
    assert mlx_lm.load_tokenizer(folder).eos_token_ids == {0, 5, 7, 8, 257}


def test_the_revision_changes_with_the_files(folder: Path) -> None:
    first = mlx_lm.load_model(folder, dequantize=False).revision
    assert mlx_lm.load_model(folder, dequantize=True).revision == first
    with (folder / "config.json").open("a") as config:
        config.write("\n")
    assert mlx_lm.load_model(folder, dequantize=False).revision != first


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _config_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _unknown_type(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "eliza"}')


def _no_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def _half_the_weights(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _another_width(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))


def _a_shard_is_missing(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_no_weights, "no model"),
        (_no_config, "no config.json"),
        (_config_is_no_json, "JSONDecodeError"),
        (_unknown_type, "eliza not supported"),
        (_no_type, "model_type"),
        (_half_the_weights, "cannot be loaded"),
        (_another_width, "cannot be loaded"),
        (_a_shard_is_missing, "lacks model-00002"),
    ],
)
def test_a_broken_folder_is_one_clear_sentence(folder: Path, damage: object, told: str) -> None:
    assert callable(damage)
    damage(folder)
    with pytest.raises(ModelError, match=told) as caught:
        mlx_lm.load_model(folder, dequantize=True)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_folder_is_never_looked_up_elsewhere() -> None:
    name = Path("someone/some-model")
    with pytest.raises(ModelError, match="is neither a model folder nor a"):
        mlx_lm.load_model(name, dequantize=True)
    with pytest.raises(ModelError, match="is neither a model folder nor a"):
        mlx_lm.load_tokenizer(name)


def test_a_folder_without_tokenizer_files_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no usable tokenizer"):
        mlx_lm.load_tokenizer(folder)


def test_the_limit_of_open_files_is_as_high_as_it_may_be() -> None:
    code = (
        "import resource as r\n"
        "before = r.getrlimit(r.RLIMIT_NOFILE)\n"
        "import bramley.worker.models.mlx_lm\n"
        "soft, hard = r.getrlimit(r.RLIMIT_NOFILE)\n"
        "assert soft >= min(before[0], hard), (before, soft, hard)\n"
    )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    subprocess.run([sys.executable, "-c", code], check=True)
    assert limits == resource.getrlimit(resource.RLIMIT_NOFILE)
