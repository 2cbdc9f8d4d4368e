"""What is predicted of a model without its weights, beside what a worker of it takes."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from mlx_lm import utils as mlx_lm

from bramley.bench.inventory.fit import Budget, fit
from bramley.bench.inventory.measured import measured
from bramley.bench.inventory.opened import Opened, opened
from bramley.bench.inventory.record import Fit
from bramley.worker.loading import numerics_of
from bramley.worker.settings import WorkerSettings
from support.blas import BLAS
from support.tiny_models import KINDS, Kind, config_of, draw, save

PLENTY = Budget(1 << 40, 0)
CONTEXT, BATCH = 400, 5  # more than a worker has room for when it is ready


def _save_wide(folder: Path, kind: Kind) -> None:
    """Write a tiny model whose weights are large beside what else MLX holds of one, 70 KB."""
    config = copy.deepcopy(config_of(kind))
    config.get("text_config", config).update(intermediate_size=4096, max_position_embeddings=512)
    model_class, arguments = cast("Any", mlx_lm)._get_classes(config)
    model = model_class(arguments.from_dict(config))
    draw(model, seed=0)
    save(folder, model, config)


@contextmanager
def _opened(path: Path, **more: Any) -> Generator[Opened]:
    with opened(WorkerSettings(path=str(path), **more), numerics_of(BLAS)) as model:
        yield model


def _fit(path: Path, context: int, batch: int) -> Fit:
    with _opened(path) as model:
        return fit(model, WorkerSettings(path=str(path)), PLENTY, context, batch)


@pytest.mark.parametrize("kind", KINDS)
async def test_weights_and_state_are_predicted_within_two_percent(
    tmp_path: Path, kind: Kind
) -> None:
    _save_wide(tmp_path / kind, kind)
    predicted = _fit(tmp_path / kind, CONTEXT, BATCH)
    taken = await measured(tmp_path / kind, context=CONTEXT, batch=BATCH)
    assert taken.weights == pytest.approx(predicted.weights_bytes, rel=0.02)
    assert taken.state == pytest.approx(predicted.state_bytes, rel=0.02)
    assert taken.workspace <= predicted.workspace_bytes
