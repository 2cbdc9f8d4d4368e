"""All that bramley takes from mlx-lm, whose only importer this is: models and tokenizers.

Only local folders are read and nothing is ever fetched. Importing this module imports mlx and
transformers (1.5 s); load the BLAS first.
"""

import contextlib
import functools
import hashlib
import json
import logging
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import mlx.core as mx
from mlx import nn
from mlx import utils as trees

from bramley.common.logs import facts
from bramley.worker.cache.recurrent import RecurrentState
from bramley.worker.models.body import body_of
from bramley.worker.models.contract import Lane, LayerCache, ModelParts
from bramley.worker.models.errors import ModelError
from bramley.worker.models.gated_delta import fast_prefill
from bramley.worker.models.rope import share_angles

log = logging.getLogger(__name__)

_FILE_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)

from mlx_lm import utils as _utils  # noqa: E402 it lowers the limit of open files
from mlx_lm.models import cache as _cache  # noqa: E402
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear  # noqa: E402
from mlx_lm.tokenizer_utils import TokenizerWrapper  # noqa: E402


def _restore_file_limit() -> None:
    soft, hard = _FILE_LIMIT
    with contextlib.suppress(ValueError):  # only root may raise the hard limit again
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return
    now, ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ceiling if soft == resource.RLIM_INFINITY else min(soft, ceiling)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, wanted), ceiling))


_restore_file_limit()

Config = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model whose parameters are in memory.

    Attributes:
        model: ``model(tokens, cache=...)`` gives logits of (rows, columns, vocabulary).
        config: its config.json.
        context_tokens: positions it was made for; 2**20 where it states none.
        vocabulary: width of its logits, which may exceed the tokenizer's.
        config_eos_token_ids: end tokens by its configuration files. The tokenizer knows one
            more: text.tokenizer.Tokenizer.eos_token_ids holds all of them.
        dtype: what it computes in, as in "float32".
        heads: query heads of a layer.
        nbytes: of its parameters.
        generation_defaults: sampling values by its generation_config.json.
        revision: changes with config.json and with the names and sizes of the weight files.
            It does not read the weights, so it does not tell two fine-tunes of one shape apart.
    """

    model: nn.Module
    config: Config
    context_tokens: int
    vocabulary: int
    config_eos_token_ids: frozenset[int]
    dtype: str
    heads: int
    nbytes: int
    generation_defaults: dict[str, float]
    revision: str


def load_model(folder: Path, *, dequantize: bool, lazy: bool = False) -> LoadedModel:
    """Load a model folder and evaluate every parameter.

    Args:
        folder: config.json, model*.safetensors, tokenizer files.
        dequantize: turn all parameters into float32, for the CPU backend, whose quantized and
            half-precision kernels are slow; elsewhere they stay as they are.
        lazy: evaluate none: of the weight files the headers alone are read.

    Returns:
        The model and the facts that its files state.

    Raises:
        ModelError: the folder is missing, incomplete, damaged or of an unknown architecture.
    """
    _check_folder(folder)
    try:
        model, config = cast("tuple[nn.Module, Config]", _utils.load_model(folder, lazy=True))
        if dequantize:
            _to_float32(model)
            share_angles(model)
        _tell_of_prompts(model, fast_prefill(model))
        if not lazy:
            mx.eval(model.parameters())
        logits = cast("mx.array", model(mx.zeros((1, 1), mx.int32)))  # its shape is all we take
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(f"{folder} cannot be loaded: {_told(error)}") from error
    generation = _read_json(folder / "generation_config.json")
    return LoadedModel(
        model=model,
        config=config,
        context_tokens=_context_tokens(config),
        vocabulary=logits.shape[-1],
        config_eos_token_ids=_config_eos_token_ids(folder),
        dtype=str(logits.dtype).removeprefix("mlx.core."),
        heads=_heads(config),
        nbytes=parameter_bytes(model),
        generation_defaults=_generation_defaults(generation),
        revision=_revision(folder),
    )


def _tell_of_prompts(model: nn.Module, fast: int) -> None:
    """Say once how prompts go through the layers that take one column after another elsewhere."""
    layers = layer_caches(model)
    recurrent = sum(any(leaf.kind == "recurrent" for leaf in layer.leaves) for layer in layers)
    if recurrent > fast:
        told = facts(recurrent_layers=recurrent, in_chunks=fast)
        log.info("layers take prompts as mlx-lm's files do, not in chunks", extra=told)


def load_tokenizer(folder: Path) -> TokenizerWrapper:
    """Load the tokenizer of a model folder; may run beside ``load_model``.

    Returns:
        mlx-lm's wrapper, whose ``eos_token_ids`` join the configuration's and the tokenizer's.

    Raises:
        ModelError: the folder holds no usable tokenizer.
    """
    _check_folder(folder)
    try:
        return _utils.load_tokenizer(
            folder,
            {"local_files_only": True, "trust_remote_code": False},
            eos_token_ids=sorted(_config_eos_token_ids(folder)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{folder} holds no usable tokenizer: {_told(error)}") from error


# Right on short sequences in lanes where they are wrong on long ones: minimax_m3_vl counts the
# blocks that a query reads from the longest row's end, and plamo3's prompts see one token more of
# a window than its decode steps do.
# afm7's reused layers rotate by the longest row, which half precision hardly shows.
_BEST_LANES = {"afm7": Lane.SERIAL, "minimax_m3_vl": Lane.SERIAL, "plamo3": Lane.OWN}


def model_parts(model: nn.Module, *, vocabulary: int, heads: int) -> ModelParts:
    """Name what the engine needs of a model."""
    make_caches = functools.partial(own_caches, model)
    body, width = body_of(model, make_caches, vocabulary)
    return ModelParts(
        model=model,
        layers=layer_caches(model),
        own_caches=make_caches,
        vocabulary=vocabulary,
        heads=heads,
        weight_bytes=parameter_bytes(model),
        best_lane=_BEST_LANES.get(cast("Any", model).model_type, Lane.BATCHED),
        body=body,
        width=width,
    )


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(array.nbytes for _, array in _tree_flatten(model.parameters()))


def layer_caches(model: nn.Module) -> list[LayerCache]:
    """What each layer's state is, by the caches that the model itself would make."""
    full: LayerCache = LayerCache(
        kind="latent" if _keeps_latents(model) else "full",
        has_grouped_scores=_has_grouped_scores(model),
    )
    return [_layer_cache(cache, full) for cache in own_caches(model)]


def own_caches(model: nn.Module) -> list[object]:
    """Make the caches that mlx-lm would run the model on, for one row."""
    return cast("list[object]", _cache.make_prompt_cache(model))


def _keeps_latents(model: nn.Module) -> bool:
    # One latent instead of keys and values by head, of which each head makes its own.
    arguments = getattr(model, "args", None)
    for each in (arguments, getattr(arguments, "text_config", None)):
        facts = cast("Mapping[str, Any]", each if isinstance(each, dict) else vars(each or object))
        if facts.get("kv_lora_rank"):
            return True
    return False


def _has_grouped_scores(model: nn.Module) -> bool:
    # gemma2's own attention lays scores out as (B, keys' heads, queries of each, L, width) and
    # takes the mask as it comes. A mask of four axes would be an error, or, where rows are as
    # many as heads, another row's.
    facts = cast("Any", model)
    if facts.model_type != "gemma2":
        return False
    return facts.args.num_key_value_heads < facts.args.num_attention_heads


def _layer_cache(cache: object, full: LayerCache) -> LayerCache:
    facts = cast("Any", cache)
    kind = type(cache)  # the very class: a subclass may mean another layout
    if kind is _cache.KVCache:
        return full
    if kind is _cache.RotatingKVCache:
        return LayerCache(kind="rotating", window=facts.max_size, keep=facts.keep)
    if kind is _cache.ArraysCache:
        return LayerCache(kind="recurrent", arrays=len(facts.cache), view=_Arrays)
    if kind is _cache.CacheList:
        parts = tuple(_layer_cache(part, full) for part in facts.caches)
        return LayerCache(kind="composite", parts=parts)
    return LayerCache(kind="unknown")


class _Arrays(_cache.ArraysCache):
    """A recurrent state as model files want it: some ask for this very class."""

    def __init__(self, state: RecurrentState) -> None:
        self._state = state

    def __getitem__(self, index: int) -> mx.array | None:
        return self._state[index]

    def __setitem__(self, index: int, value: mx.array) -> None:
        self._state[index] = value

    @property
    def lengths(self) -> mx.array | None:
        return self._state.lengths

    def advance(self, N: int) -> None:  # noqa: N803 mlx-lm's name
        """Nothing to do: the table counts."""

    def make_mask(self, N: int) -> mx.array | None:  # noqa: N803 mlx-lm's name
        return self._state.make_mask(N)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder} is neither a model folder nor a .gguf file")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no config.json")
    index = _read_json(folder / "model.safetensors.index.json")
    listed = set(cast("dict[str, str]", index.get("weight_map", {})).values())
    missing = sorted(name for name in listed if not (folder / name).is_file())
    if missing:
        raise ModelError(f"{folder} lacks {missing[0]}, which its index lists")
    if not _weight_files(folder):
        raise ModelError(f"{folder} holds no model*.safetensors")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model*.safetensors"))


def _read_json(path: Path) -> Config:
    try:
        value: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {_told(error)}") from error
    return cast("Config", value) if isinstance(value, dict) else {}


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _to_float32(model: nn.Module) -> None:
    modules = cast("list[tuple[str, nn.Module]]", model.named_modules())
    # MLX runs each stream of a CPU on one thread.
    streams = [mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)]
    plain: list[tuple[str, nn.Module]] = []
    for name, module in modules:
        with mx.stream(streams[len(plain) % len(streams)]):
            dequantized = _dequantized(module)
        if dequantized is not None:
            plain.append((name, dequantized))
    model.update_modules(_tree_unflatten(plain))
    model.update(cast("dict[str, Any]", _tree_map(_as_float32, model.parameters())))


_tree_map = cast("Callable[[Callable[[Any], Any], Any], Any]", trees.tree_map)
_tree_unflatten = cast("Callable[[Any], Any]", trees.tree_unflatten)
_tree_flatten = cast("Callable[[Any], list[tuple[str, mx.array]]]", trees.tree_flatten)


def _as_float32(value: _T) -> _T:
    if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating):
        return cast("_T", value.astype(mx.float32))
    return value


def _dequantized(module: nn.Module) -> nn.Module | None:
    quantized = cast("Any", module)
    # Made with the smallest initial weights: they are replaced at once.
    plain: nn.Module
    if type(module) is nn.QuantizedLinear:
        plain = nn.Linear(1, 1, bias=False)
    elif type(module) is nn.QuantizedEmbedding:
        plain = nn.Embedding(1, 1)
    elif type(module) is QuantizedSwitchLinear:
        plain = SwitchLinear(1, 1, 1, bias=False)
    else:
        return None
    # In half precision the product of scale and value would be rounded.
    weight = mx.dequantize(
        quantized.weight,
        _as_float32(quantized.scales),
        _as_float32(quantized.get("biases")),
        quantized.group_size,
        quantized.bits,
        quantized.mode,
        _as_float32(quantized.get("global_scale")),
    )
    plain.update({"weight": weight.astype(mx.float32)})
    if "bias" in module:
        plain["bias"] = quantized.bias
    return plain


_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


def _context_tokens(config: Config) -> int:
    for table in (config, _text_config(config)):
        for key in _CONTEXT_KEYS:
            if isinstance(table.get(key), int) and table[key] > 0:
                return table[key]
    return 1 << 20


def _heads(config: Config) -> int:
    for table in (config, _text_config(config)):
        for key in ("num_attention_heads", "n_head", "n_heads"):
            if isinstance(table.get(key), int):
                return table[key]
    return 32


def _text_config(config: Config) -> Config:
    return cast("Config", config.get("text_config") or {})


def _config_eos_token_ids(folder: Path) -> frozenset[int]:
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    found: set[int] = set()
    for table in (config, _text_config(config), generation):
        ids = table.get("eos_token_id")
        found.update(cast("list[int]", ids) if isinstance(ids, list) else [ids] if ids else [])
        if ids == 0:
            found.add(0)
    return frozenset(found)


# What a generation_config.json may set of the sampling, and from where to where.
_DEFAULTS = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (-1, 1 << 31),
    "min_p": (0, 1),
    "repetition_penalty": (0.1, 100),
}


def _generation_defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    defaults: dict[str, float] = {}
    for key, (low, high) in _DEFAULTS.items():
        value = generation.get(key)
        if isinstance(value, int | float) and low <= value <= high:  # NaN is not
            defaults[key] = float(value)
        elif value is not None:
            log.warning("generation_config.json: %s of %r is not used", key, value)
    if generation.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def _revision(folder: Path) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in _weight_files(folder):
        digest.update(f"\0{file.name}\0{file.stat().st_size}".encode())
    return digest.hexdigest()
