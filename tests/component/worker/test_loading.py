"""What a worker makes of its settings' memory once it knows its weights."""

from pathlib import Path

import mlx.core as mx
import pytest

from bramley.worker.loading import Numerics, load
from bramley.worker.models.errors import ModelError
from bramley.worker.settings import WorkerSettings
from support import tiny_models
from support.blas import BLAS

NUMERICS = Numerics(f"cpu {BLAS.name}", BLAS.sum_panel)


def test_a_model_whose_weights_take_all_its_memory_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    tiny_models.save_tiny(tmp_path, "full")
    settings = WorkerSettings(path=str(tmp_path), memory_bytes=10_000)
    with pytest.raises(ModelError, match=r"take \d+ bytes, and memory_bytes gives it 10000"):
        load(settings, NUMERICS, lambda _, __: None)


def test_one_with_room_for_its_rows_is_loaded(tmp_path: Path) -> None:
    tiny_models.save_tiny(tmp_path, "full")
    settings = WorkerSettings(path=str(tmp_path), memory_bytes=mx.get_active_memory() + (1 << 30))
    _, loaded = load(settings, NUMERICS, lambda _, __: None)
    assert loaded.limits.max_rows == settings.max_rows
