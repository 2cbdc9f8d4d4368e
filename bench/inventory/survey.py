"""Describes an opened model: its tensors by kind, its configuration, what its rows keep."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import msgspec

from bramley.bench.inventory.opened import Opened
from bramley.bench.inventory.record import (
    ConfigFacts,
    Group,
    Inventory,
    LayerState,
    StateFacts,
    TensorFacts,
)
from bramley.worker.cache.contract import LayerState as State
from bramley.worker.engine.cohort import Cohort
from bramley.worker.loading import backend
from bramley.worker.models.gguf_header import GgufHeader
from bramley.worker.models.headers import Tensor
from bramley.worker.models.mlx_lm import LoadedModel
from bramley.worker.models.weights import KINDS, Matrix, kind_of, matrices

_ENDLESS = 1 << 60  # tokens of a row that has all that it ever will
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def survey(opened: Opened, *, with_tensors: bool) -> Inventory:
    """Describe a model.

    Args:
        opened: the model.
        with_tensors: whether to list them all.

    Returns:
        All that is known without its weights.
    """
    stored, built = opened.stored, opened.built
    tensors = list(stored.tensors.values())
    family = built.family if built else None
    parts = list(matrices(stored.tensors, opened.config))
    nbytes, parameters = sum(each.nbytes for each in tensors), sum(one.parameters for one in parts)
    dtypes = Counter[str]()
    for each in tensors:
        dtypes[each.dtype] += each.nbytes
    return Inventory(
        path=str(opened.path),
        format="folder" if opened.header is None else "gguf",
        files=dict(stored.files),
        missing=list(stored.missing),
        absent=list(stored.absent),
        tensor_count=len(tensors),
        parameters=parameters,
        nbytes=nbytes,
        bits=_bits(nbytes, parameters),
        dtypes=dict(dtypes.most_common()),
        groups=groups(tensors, parts),
        config=_config(opened, parts),
        weights_bytes=built.model.nbytes if built else None,
        state=state_facts(built.model, built.cohort) if built and built.cohort else None,
        unknown=built.problem if built else opened.problem,
        lane=built.lane.value if built and built.lane else None,
        reasoning_format=family.name if family else None,
        tool_format=family.tool_format if family else None,
        tensors=_listed(tensors) if with_tensors else None,
    )


def groups(tensors: Iterable[Tensor], parts: Sequence[Matrix]) -> list[Group]:
    """Add up tensors of one kind, kind after kind."""
    counts = Counter(kind_of(tensor.name) for tensor in tensors)
    by_kind: dict[str, list[Matrix]] = {kind: [] for kind in KINDS}
    for part in parts:
        by_kind[kind_of(part.name)].append(part)
    return [_group(kind, counts[kind], found) for kind, found in by_kind.items() if found]


def _group(kind: str, tensors: int, parts: Sequence[Matrix]) -> Group:
    schemes = Counter[str]()
    for part in parts:
        schemes[part.scheme] += part.nbytes
    nbytes, parameters = sum(one.nbytes for one in parts), sum(one.parameters for one in parts)
    return Group(
        kind=kind,
        tensors=tensors,
        parameters=parameters,
        nbytes=nbytes,
        bits=_bits(nbytes, parameters),
        schemes=dict(schemes.most_common()),
    )


def _bits(nbytes: int, parameters: int) -> float:
    return round(nbytes * 8 / parameters, 3) if parameters else 0.0


def _listed(tensors: Iterable[Tensor]) -> list[TensorFacts]:
    return [
        TensorFacts(
            name=each.name,
            kind=kind_of(each.name),
            dtype=each.dtype,
            shape=each.shape,
            nbytes=each.nbytes,
            file=each.file,
        )
        for each in tensors
    ]


def state_facts(model: LoadedModel, cohort: Cohort) -> StateFacts:
    """Tell what rows of a model keep, one entry for the layers that keep alike."""
    kept = sorted((_kept(state) for state in cohort.layers), key=_order)
    layers = [
        LayerState(
            kind=kind,
            layers=(count := len(list(alike))),
            token_bytes=count * token_bytes,
            grows_to_tokens=most,
            fixed_bytes=count * fixed,
        )
        for (kind, token_bytes, most, fixed), alike in groupby(kept)
    ]
    return StateFacts(
        backend=backend(),
        dtype=model.dtype,
        layers=layers,
        token_bytes=sum(each.token_bytes for each in layers if each.grows_to_tokens is None),
        fixed_bytes=sum(
            each.row_bytes(_ENDLESS) for each in layers if each.grows_to_tokens is not None
        ),
    )


Kept = tuple[str, int, int | None, int]


def _kept(state: State) -> Kept:
    """Tell a layer's kind, bytes of a token, tokens up to which it grows, bytes of a row beside."""
    if state.kind == "recurrent":
        return state.kind, 0, 0, state.row_bytes(1)
    token_bytes = state.export_bytes(1)
    if state.is_sliceable:
        return state.kind, token_bytes, None, 0
    return state.kind, token_bytes, state.row_bytes(_ENDLESS) // max(token_bytes, 1), 0


def _order(kept: Kept) -> tuple[str, int, int, int]:
    kind, token_bytes, most, fixed = kept
    return kind, token_bytes, most or 0, fixed


# Keys of config.json, of which the first that is there counts.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv", "n_kv_heads", "num_kv_heads"),
    "head_size": ("head_dim", "attention_head_dim"),
    "mlp": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "expert_mlp": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "context_tokens": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "vocabulary": ("vocab_size", "n_vocab"),
}


def config_facts(config: Mapping[str, Any]) -> ConfigFacts:
    """Read a config.json, whichever names it has for things."""
    inner: object = config.get("text_config")
    text = {**config, **(cast("dict[str, Any]", inner) if isinstance(inner, dict) else {})}
    found = {name: _number(text, keys) for name, keys in _KEYS.items()}
    if found["head_size"] is None and found["hidden"] and found["heads"]:
        found["head_size"] = found["hidden"] // found["heads"]
    of_experts = (found.pop("expert_mlp") or 0) * (found.pop("experts_per_token") or 0)
    found["mlp"] = max(found["mlp"] or 0, of_experts) or None
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    told: object = config.get("model_type")
    architecture = told if isinstance(told, str) else None
    return msgspec.convert({"architecture": architecture, **found}, ConfigFacts)


def _config(opened: Opened, parts: Iterable[Matrix]) -> ConfigFacts:
    header, built = opened.header, opened.built
    facts = config_facts(opened.config)
    if built is not None:
        facts = msgspec.structs.replace(
            facts,
            context_tokens=built.model.context_tokens,
            vocabulary=built.model.vocabulary,
        )
    if facts.architecture is None and header is not None:
        told = header.facts.get("general.architecture")
        facts = msgspec.structs.replace(facts, architecture=str(told) if told else None)
    return msgspec.structs.replace(
        facts,
        tied_embeddings=not any(kind_of(part.name) == "head" for part in parts),
        tokenizer=_tokenizer(opened.path, header),
        chat_template=_template(opened.path, header),
    )


def _number(table: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    values = (table.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _tokenizer(path: Path, header: GgufHeader | None) -> bool:
    if header is not None:
        return "tokenizer.ggml.tokens" in header.facts
    return any((path / name).is_file() for name in _TOKENIZERS)


def _template(path: Path, header: GgufHeader | None) -> bool:
    if header is not None:
        return "tokenizer.chat_template" in header.facts
    if any((path / name).is_file() for name in _TEMPLATES):
        return True
    try:
        return b'"chat_template"' in (path / "tokenizer_config.json").read_bytes()
    except OSError:
        return False
