"""Opens a model as a worker would, down to the point where weights would be read.

The model is mlx-lm's class with parameters that nobody evaluates, and one forward of one token is
built upon it and never run: by then its layers' states know what a token takes. Load the BLAS
first.
"""

import json
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from bramley.cachestore.digest import file_digest, remembered_digest
from bramley.worker.engine.assembly import cohorts
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.faults import MODEL_FAULTS
from bramley.worker.lanes import remembered
from bramley.worker.loading import (
    Numerics,
    backend,
    imported_folder,
    lane_depends_on,
    memo,
)
from bramley.worker.models.contract import Lane, ModelParts
from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf import write_stand_in
from bramley.worker.models.gguf_header import GgufHeader, read_gguf_header
from bramley.worker.models.headers import Stored, read_folder
from bramley.worker.models.mlx_lm import (
    LoadedModel,
    load_model,
    load_tokenizer,
    model_parts,
)
from bramley.worker.reading.families import Family
from bramley.worker.settings import WorkerSettings
from bramley.worker.shaping import family_of
from bramley.worker.text.tokenizer import Tokenizer

_OWN_CACHES = "its layers keep caches of their own, whose size shows only when it runs"


@dataclass(frozen=True, slots=True)
class Built:
    """A model whose weights are not loaded.

    Attributes:
        model: all facts of which are as if it were.
        parts: of it.
        cohort: of one row, whose layers have seen a token; None where ``problem`` says why not.
        lane: as a worker found it out; None if none has.
        family: how it writes; None where there is no tokenizer to tell, as of a GGUF file that no
            worker has imported.
    """

    model: LoadedModel
    parts: ModelParts
    cohort: Cohort | None
    lane: Lane | None
    family: Family | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model's files, and what they make.

    Attributes:
        header: of a GGUF file; None of a folder.
        config: config.json, or what a GGUF's would be; empty where that is unknown.
        built: None where ``problem`` says why not.
    """

    path: Path
    stored: Stored
    header: GgufHeader | None
    config: Mapping[str, Any]
    built: Built | None
    problem: str = ""


@contextmanager
def opened(settings: WorkerSettings, numerics: Numerics) -> Generator[Opened]:
    """Open a model folder or a GGUF file.

    Args:
        settings: which model; where workers keep what they remember.
        numerics: what computes.

    Yields:
        The model, for the length of the block.

    Raises:
        ModelError: the files are not there, or cannot be read.
    """
    path = Path(settings.path)
    if path.suffix != ".gguf":
        if not path.is_dir():
            raise ModelError(f"{path} is neither a model folder nor a .gguf file")
        stored, config = read_folder(path), _config(path)
        built, problem = _built(path, path, settings, numerics)
        yield Opened(path, stored, None, config, built, problem)
        return
    header = read_gguf_header(path)
    stored = Stored(header.tensors, {path.name: header.nbytes})
    with tempfile.TemporaryDirectory(prefix="bramley-") as name:
        folder = Path(name)
        try:
            write_stand_in(header, folder)
        except ModelError as error:
            yield Opened(path, stored, header, {}, None, str(error))
            return
        kept = imported_folder(path, settings.import_dir)
        built, problem = _built(folder, kept, settings, numerics)
        yield Opened(path, stored, header, _config(folder), built, problem)


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config: object = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{folder} holds no config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} holds no object")
    return cast("Mapping[str, Any]", config)


def _built(
    folder: Path, kept: Path, settings: WorkerSettings, numerics: Numerics
) -> tuple[Built | None, str]:
    """Build the model of a folder; ``kept`` is the one that workers load."""
    try:
        model = load_model(folder, dequantize=backend() == "cpu", lazy=True)
        parts = model_parts(model.model, vocabulary=model.vocabulary, heads=model.heads)
        lane = _lane(kept, settings, model, numerics)
    except (ModelError, *MODEL_FAULTS) as error:
        return None, _told(error)
    family = _family(kept)
    if any(leaf.kind == "unknown" for layer in parts.layers for leaf in layer.leaves):
        return Built(model, parts, None, lane, family, _OWN_CACHES), ""
    try:
        cohort = _cohort(parts, numerics.sum_panel)
    except MODEL_FAULTS as error:
        return Built(model, parts, None, lane, family, _told(error)), ""
    return Built(model, parts, cohort, lane, family), ""


def _family(folder: Path) -> Family | None:
    try:
        return family_of(Tokenizer(load_tokenizer(folder)))
    except (ModelError, *MODEL_FAULTS):
        return None


def _told(error: Exception) -> str:
    return " ".join(str(error).split())


def _cohort(parts: ModelParts, sum_panel: int) -> Cohort:
    cohort = cohorts(parts.layers, sum_panel)()
    cohort.join(0)
    cohort.table.begin(range(1), 1)
    cohort.prepare()
    parts.model(mx.zeros((1, 1), mx.int32), cache=cohort.caches)  # never evaluated
    return cohort


def _lane(
    folder: Path, settings: WorkerSettings, model: LoadedModel, numerics: Numerics
) -> Lane | None:
    weights = remembered_digest(folder, memo(folder, settings, "digests"))
    if weights is None:
        return None
    depends_on = lane_depends_on(weights, file_digest([folder / "config.json"]), model, numerics)
    return remembered(memo(folder, settings, "lanes"), depends_on)
