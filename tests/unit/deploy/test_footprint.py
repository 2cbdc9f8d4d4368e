"""What weights take, by their files."""

import json
import struct
import sys
from pathlib import Path

import pytest

from bramley.deploy.footprint import computes_on_cpu, weights_bytes


def _folder(path: Path, config: dict[str, object]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for name, size in (("model-1", 600), ("model-2", 400), ("consolidated", 1000)):
        (path / f"{name}.safetensors").write_bytes(bytes(size))
    return path


@pytest.mark.parametrize(
    ("config", "on_gpu", "on_cpu"),
    [
        ({"torch_dtype": "float32"}, 1000, 1000),
        ({"torch_dtype": "bfloat16"}, 1000, 2000),
        ({"dtype": "float16"}, 1000, 2000),
        ({}, 1000, 2000),
        ({"torch_dtype": "bfloat16", "quantization": {"bits": 4, "group_size": 64}}, 1000, 8000),
        ({"quantization_config": {"bits": 8}}, 1000, 4000),
        ({"quantization_config": {"quant_method": "mxfp4"}}, 1000, 8000),
        ({"quantization": {"bits": -1}}, 1000, 8000),
    ],
)
def test_a_folder_takes_its_files_and_on_the_cpu_float32(
    tmp_path: Path, config: dict[str, object], on_gpu: int, on_cpu: int
) -> None:
    folder = _folder(tmp_path, config)
    assert weights_bytes(folder, on_cpu=False) == on_gpu
    assert weights_bytes(folder, on_cpu=True) == on_cpu


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.gguf"):
        assert weights_bytes(path, on_cpu=True) == 0
        assert weights_bytes(path, on_cpu=False) == 0


@pytest.mark.parametrize("config", ["", "[]", '{"quantization":', "\xff"])
def test_a_folder_that_cannot_be_read_takes_nothing_on_the_cpu(tmp_path: Path, config: str) -> None:
    _folder(tmp_path, {})
    (tmp_path / "config.json").write_text(config, encoding="latin-1")
    assert weights_bytes(tmp_path, on_cpu=True) == 0


def test_a_weight_file_that_leads_nowhere_takes_nothing(tmp_path: Path) -> None:
    _folder(tmp_path, {})
    (tmp_path / "model-3.safetensors").symlink_to(tmp_path / "gone")
    assert weights_bytes(tmp_path, on_cpu=False) == 0


@pytest.mark.parametrize(
    ("file_type", "on_gpu", "on_cpu"),
    [
        (0, 9000, 9000),
        (1, 9000, 18000),
        (2, 9000, 64000),
        (7, 9000, 33882),
        (15, 18000, 36000),
        (None, 18000, 36000),
    ],
)
def test_a_gguf_file_takes_what_mlx_makes_of_its_format(
    tmp_path: Path, file_type: int | None, on_gpu: int, on_cpu: int
) -> None:
    key = b"general.file_type"
    told = struct.pack("<Q17sII", len(key), key, 4, file_type) if file_type is not None else b""
    file = tmp_path / "model.gguf"
    file.write_bytes((b"GGUF" + bytes(20) + told).ljust(9000, b"x"))
    assert weights_bytes(file, on_cpu=False) == on_gpu
    assert weights_bytes(file, on_cpu=True) == on_cpu


@pytest.mark.parametrize(
    ("platform", "devices", "on_cpu"),
    [
        ("darwin", [], False),
        ("linux", ["nvidiactl", "tty0"], True),
        ("linux", ["nvidia0", "nvidiactl"], False),
    ],
)
def test_a_gpu_is_known_by_its_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    devices: list[str],
    on_cpu: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name in devices:
        (tmp_path / name).touch()
    assert computes_on_cpu(tmp_path) is on_cpu
