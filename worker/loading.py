"""Brings a model up: files to an executor on the engine's thread, tokenizer beside it."""

import functools
import inspect
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from bramley.cachestore.digest import file_digest, weights_digest
from bramley.cachestore.keys import Identity
from bramley.common.logs import facts
from bramley.protos.v1 import types_pb2
from bramley.worker.cache.snapshot import layout, part_bytes, sliceable, stateful
from bramley.worker.embedding.declared import declared_by
from bramley.worker.embedding.serving import Embeddable
from bramley.worker.engine.assembly import make_executor
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.selfcheck import choose_lane
from bramley.worker.intake import ModelFacts
from bramley.worker.lanes import code_digest, remember, remembered
from bramley.worker.models.blas import Blas
from bramley.worker.models.contract import Lane, ModelParts
from bramley.worker.models.errors import ModelError
from bramley.worker.prefix import StateFacts
from bramley.worker.reading.families import Family
from bramley.worker.settings import WorkerSettings
from bramley.worker.shaping import family_of
from bramley.worker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bramley.worker.models.mlx_lm import LoadedModel

log = logging.getLogger(__name__)

EPOCH = 4  # of our own arithmetic: raised when it gives other bits (models/gated_delta.py)


Progress = Callable[[types_pb2.ModelState.ValueType, float], None]


@dataclass(frozen=True, slots=True)
class Numerics:
    """What computes, as far as the bits depend on it.

    Attributes:
        name: backend and BLAS; state of one is not restored by another.
        sum_panel: of the BLAS (models/blas.py).
    """

    name: str
    sum_panel: int = 0


def backend() -> str:
    """Name what MLX computes on: "cpu", "metal" or "cuda"."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def numerics_of(blas: Blas) -> Numerics:
    """Tell what computes in a process that has loaded this BLAS."""
    if backend() == "cpu":
        return Numerics(f"cpu {blas.name}", blas.sum_panel)
    return Numerics(f"{backend()} ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the asyncio side needs of a loaded model; holds no MLX array."""

    facts: ModelFacts
    limits: types_pb2.ModelLimits
    revision: str
    dtype: str
    tokenizer: Tokenizer
    family: Family
    embedding: Embeddable
    state: StateFacts


def load(
    settings: WorkerSettings, numerics: Numerics, progress: Progress
) -> tuple[Executor, Loaded]:
    """Load a model; must run on the thread that will step it.

    Args:
        settings: which model, and its limits.
        numerics: what computes.
        progress: told the state, LOADING or WARMING, and the share that is done, 0 to 1.

    Returns:
        The executor, warm, and what others need to know.

    Raises:
        ModelError: in one sentence why this model cannot be served.
    """
    try:
        return _load(settings, numerics, progress)
    except _FAULTS as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise ModelError(f"{settings.path} cannot be served: {told}") from error


# Whatever odd files make the libraries that read them trip over.
_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _load(
    settings: WorkerSettings, numerics: Numerics, progress: Progress
) -> tuple[Executor, Loaded]:
    started_s = time.monotonic()
    folder = model_folder(settings)
    with ThreadPoolExecutor(2, "beside") as beside:
        digesting = beside.submit(_digests, folder, settings)
        # mlx-lm and transformers take 1.5 s to import: not before the sockets are bound.
        from bramley.worker.models.mlx_lm import (  # noqa: PLC0415
            load_model,
            load_tokenizer,
            model_parts,
        )

        progress(types_pb2.MODEL_STATE_LOADING, 0.2)
        tokenizer_loading = beside.submit(lambda: Tokenizer(load_tokenizer(folder)))
        model = load_model(folder, dequantize=mx.default_device().type == mx.DeviceType.cpu)
        _check_size(settings)
        progress(types_pb2.MODEL_STATE_WARMING, 0.8)
        weights, config, tokens = digesting.result()
        context = min(model.context_tokens, settings.context_tokens or model.context_tokens)
        parts = model_parts(model.model, vocabulary=model.vocabulary, heads=model.heads)
        epoch = epoch_of(model.dtype, numerics)
        depends_on = lane_depends_on(weights, config, model, numerics)
        lane = _lane(parts, numerics.sum_panel, memo(folder, settings, "lanes"), depends_on)
        executor, cohort = make_executor(
            parts, lane, context_tokens=context, sum_panel=numerics.sum_panel
        )
        tokenizer = tokenizer_loading.result()
    state_layers = cohort.layers
    identity = Identity(
        weights_digest=weights,
        config_digest=config,
        tokenizer_digest=tokens,
        kv_scheme=tuple(layer.kind for layer in state_layers),
        layout=layout(state_layers),
        numerics_epoch=epoch,
    )
    eos = frozenset(tokenizer.eos_token_ids)
    family = family_of(tokenizer)
    log.info(
        "loaded",
        extra=facts(folder=folder, lane=lane.value, seconds=round(time.monotonic() - started_s, 2)),
    )
    return (
        executor,
        Loaded(
            facts=ModelFacts(
                context_tokens=context,
                vocabulary=model.vocabulary,
                token_characters_max=tokenizer.token_characters_max,
                eos_token_ids=eos,
                defaults=model.generation_defaults,
                reasoning_format=family.name,
                tool_format=family.tool_format,
            ),
            limits=types_pb2.ModelLimits(
                context_tokens=context,
                vocabulary=model.vocabulary,
                eos_token_ids=sorted(eos),
                max_rows=lane.rows_max or settings.max_rows,
                lane=types_pb2.LANE_SERIAL if lane.rows_max == 1 else types_pb2.LANE_BATCHED,
                lane_reason=lane.reason,
                has_chat_template=tokenizer.has_chat_template,
                token_bytes=part_bytes(sliceable(state_layers), 1),
                row_bytes=part_bytes(stateful(state_layers), context),
                reasoning_format=family.name,
                tool_format=family.tool_format,
            ),
            revision=model.revision,
            dtype=model.dtype,
            tokenizer=tokenizer,
            family=family,
            embedding=Embeddable(parts.width, declared_by(folder)),
            state=StateFacts(
                identity=identity,
                token_bytes=part_bytes(sliceable(state_layers), 1),
                state_bytes=functools.partial(part_bytes, stateful(state_layers)),
            ),
        ),
    )


def _check_size(settings: WorkerSettings) -> None:
    taken = mx.get_active_memory()
    if settings.memory_bytes and taken >= settings.memory_bytes:
        raise ModelError(
            f"{settings.path} cannot be served: its weights take {taken} bytes, "
            f"and memory_bytes gives it {settings.memory_bytes}"
        )


def _digests(folder: Path, settings: WorkerSettings) -> tuple[str, str, str]:
    tokenizer_files = sorted(folder.glob("tokenizer*")) + sorted(folder.glob("*chat_template*"))
    return (
        weights_digest(folder, memo(folder, settings, "digests")),
        file_digest([folder / "config.json"]),
        file_digest(tokenizer_files),
    )


def memo(folder: Path, settings: WorkerSettings, name: str) -> Path:
    """Tell the file in which workers remember the "digests" of weights, or "lanes"."""
    return Path(settings.import_dir or folder) / f"{name}.json"


def epoch_of(dtype: str, numerics: Numerics) -> str:
    """Name all that a state's bits depend on beside the model's files."""
    return f"{EPOCH} mlx {metadata.version('mlx')} {dtype} {numerics.name}"


def lane_depends_on(
    weights: str, config: str, model: "LoadedModel", numerics: Numerics
) -> tuple[str, ...]:
    """List all that the choice of a lane depends on; ``weights`` and ``config`` are digests."""
    epoch = epoch_of(model.dtype, numerics)
    return (weights, config, epoch, str(numerics.sum_panel), _code_of_check(model.model))


def _code_of_check(model: object) -> str:
    """Digest the code that a self-check runs: the model's file, those beside it, and ours."""
    own = Path(__file__).parent
    beside = Path(inspect.getfile(type(model))).parent
    return code_digest([own / "cache", own / "models", own / "engine", beside])


def _lane(parts: ModelParts, sum_panel: int, memo: Path, depends_on: tuple[str, ...]) -> Lane:
    """Choose the lane, or remember what was chosen when all was as it is."""
    lane = remembered(memo, depends_on)
    if lane is None:
        lane = choose_lane(parts, sum_panel)
        remember(memo, depends_on, lane)
    return lane


def model_folder(settings: WorkerSettings) -> Path:
    """Find the folder of a model, and make it of a GGUF file unless that was done before."""
    path = Path(settings.path)
    if path.suffix != ".gguf":
        return path
    from bramley.worker.models.gguf import import_gguf  # noqa: PLC0415 as above

    target = imported_folder(path, settings.import_dir)
    import_gguf(path, target)
    return target


def imported_folder(file: Path, import_dir: str) -> Path:
    """Tell where the model folder of a GGUF file is, or is to be.

    Returns:
        Its path.

    Raises:
        ModelError: the file is not there.
    """
    if not file.is_file():
        raise ModelError(f"{file} is not a file")
    # Named by what tells one file from another, so that a replaced file is imported again.
    facts_of_file = file.stat()
    folder = f"{file.stem}-{facts_of_file.st_size:x}-{facts_of_file.st_mtime_ns:x}"
    return Path(import_dir or file.parent) / folder
