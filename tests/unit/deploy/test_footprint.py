"""What weights take, by the headers of their files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bramley.deploy.footprint import weights_bytes
from support.weight_files import gguf, safetensors


def _folder(path: Path, config: dict[str, object], dtype: str = "F16") -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for number, rows in ((1, 6), (2, 4)):
        shapes = {f"layer.{number}.weight": (dtype, (rows, 50))}
        safetensors(path / f"model-{number}.safetensors", shapes)
    safetensors(path / "consolidated.safetensors", {"again": (dtype, (10, 50))})
    return path


@pytest.mark.parametrize(
    ("dtype", "on_gpu", "on_cpu"),
    [("F32", 2000, 2000), ("BF16", 1000, 2000), ("F16", 1000, 2000), ("I32", 2000, 2000)],
)
def test_a_folder_takes_its_tensors_and_on_the_cpu_float32(
    tmp_path: Path, dtype: str, on_gpu: int, on_cpu: int
) -> None:
    folder = _folder(tmp_path, {}, dtype)
    assert weights_bytes(folder, on_cpu=False) == on_gpu
    assert weights_bytes(folder, on_cpu=True) == on_cpu


def test_quantized_weights_are_counted_as_what_they_stand_for(tmp_path: Path) -> None:
    config = {"quantization": {"bits": 4, "group_size": 32, "head": {"bits": 8, "group_size": 64}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {
        "up.weight": ("U32", (8, 32)),
        "up.scales": ("F16", (8, 8)),
        "up.biases": ("F16", (8, 8)),
        "head.weight": ("U32", (8, 64)),
        "head.scales": ("F16", (8, 4)),
        "head.biases": ("F16", (8, 4)),
    }
    safetensors(tmp_path / "model.safetensors", shapes)
    assert weights_bytes(tmp_path, on_cpu=True) == 2 * 8 * 256 * 4
    stored = {"U32": 4, "F16": 2}
    assert weights_bytes(tmp_path, on_cpu=False) == sum(
        math.prod(shape) * stored[dtype] for dtype, shape in shapes.values()
    )


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.gguf"):
        assert weights_bytes(path, on_cpu=True) == 0
        assert weights_bytes(path, on_cpu=False) == 0


@pytest.mark.parametrize("config", ["", "[]", '{"quantization":', "\xff"])
def test_a_folder_that_cannot_be_read_takes_nothing(tmp_path: Path, config: str) -> None:
    _folder(tmp_path, {})
    (tmp_path / "config.json").write_text(config, encoding="latin-1")
    assert weights_bytes(tmp_path, on_cpu=True) == 0


def test_a_torn_file_or_one_that_leads_nowhere_takes_nothing(tmp_path: Path) -> None:
    _folder(tmp_path, {})
    (tmp_path / "model-3.safetensors").symlink_to(tmp_path / "gone")
    assert weights_bytes(tmp_path, on_cpu=False) == 0
    (tmp_path / "model-3.safetensors").unlink()
    assert weights_bytes(tmp_path, on_cpu=False) == 1000
    (tmp_path / "model-3.safetensors").write_bytes(bytes(100))
    assert weights_bytes(tmp_path, on_cpu=False) == 0


@pytest.mark.parametrize(
    ("kind", "stored", "on_gpu", "on_cpu"),
    [
        (0, 4096, 4096, 4096),
        (1, 2048, 2048, 4096),
        (2, 576, 640, 4096),  # Q4_0: MLX has a bias beside each scale
        (8, 1088, 1152, 4096),  # Q8_0
        (12, 576, 2048, 4096),  # Q4_K: MLX makes float16 of it
    ],
)
def test_a_gguf_file_takes_what_mlx_makes_of_its_formats(
    tmp_path: Path, kind: int, stored: int, on_gpu: int, on_cpu: int
) -> None:
    file = tmp_path / "model.gguf"
    tensors: dict[str, Any] = {"token_embd.weight": (kind, (256, 4), stored)}
    gguf(file, {}, tensors)
    assert weights_bytes(file, on_cpu=False) == on_gpu
    assert weights_bytes(file, on_cpu=True) == on_cpu
