"""Reads what a model folder says of its embeddings, as sentence-transformers writes it.

``modules.json`` lists what follows the model: a pooling, and perhaps a normalisation. A model that
asks for more than is computed here is not embedded with: its vectors would be others.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bramley.worker.embedding.job import Pooling
from bramley.worker.models.errors import ModelError

_POOLINGS: dict[str, Pooling] = {
    "mean_tokens": "mean",
    "mean": "mean",
    "lasttoken": "last",
    "last": "last",
}
_SERVED = frozenset({"Transformer", "Pooling", "Normalize"})
_FLAG = "pooling_mode_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a folder says.

    Attributes:
        pooling: that is used unless a request names one.
        normalizes: whether vectors have length 1.
        problem: why nothing can be embedded; empty if it can.
    """

    pooling: Pooling = "mean"
    normalizes: bool = False
    problem: str = ""


def declared_by(folder: Path) -> Declared:
    """Read a model folder.

    Returns:
        What it says; mean pooling where it says nothing.

    Raises:
        ModelError: a file cannot be read.
    """
    config = _object(_read(folder / "config.json"))
    if config.get("use_bidirectional_attention") is True or config.get("is_causal") is False:
        return Declared(problem="it reads texts in both directions, and is served in one")
    modules = _read(folder / "modules.json")
    if modules is None:
        return _pooled(folder / "1_Pooling", is_normalized=False)
    listed = [_object(one) for one in cast("list[Any]", modules)]
    paths = {str(one.get("type")).rpartition(".")[2]: str(one.get("path")) for one in listed}
    if unserved := sorted(paths.keys() - _SERVED):
        return Declared(problem=f"its modules.json asks for {unserved[0]}, which is not served")
    return _pooled(folder / paths.get("Pooling", ""), is_normalized="Normalize" in paths)


def _pooled(folder: Path, *, is_normalized: bool) -> Declared:
    config = _object(_read(folder / "config.json"))
    asked = [
        name.removeprefix(_FLAG)
        for name, value in config.items()
        if name.startswith(_FLAG) and value is True
    ]
    if isinstance(mode := config.get("pooling_mode"), str):  # its newer form
        asked = [mode]
    if not asked:
        return Declared(normalizes=is_normalized)
    if len(asked) > 1 or asked[0] not in _POOLINGS:
        return Declared(problem=f"it pools by {' and '.join(asked)}, which is not served")
    return Declared(pooling=_POOLINGS[asked[0]], normalizes=is_normalized)


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
