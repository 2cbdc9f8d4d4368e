"""What docs/models.md says of each model: its lane, as recorded in tests/golden/lanes.json."""

import json
from pathlib import Path
from typing import TypedDict, cast

import mlx.core as mx
from mlx import nn

from bramley.worker.engine.selfcheck import choose_lane
from bramley.worker.models.contract import Lane, LanguageModel
from bramley.worker.models.mlx_lm import layer_caches, model_parts, own_caches
from support.blas import BLAS

FILE = Path(__file__).parents[2] / "golden" / "lanes.json"


class Record(TypedDict):
    """What is said of one config.

    Attributes:
        lane: value of its Lane; "not tried" if there is no such model here.
        layers: kinds of state that it keeps.
        why: it has no better lane.
    """

    lane: str
    layers: str
    why: str


def recorded() -> dict[str, Record]:
    """Read the file."""
    return cast("dict[str, Record]", json.loads(FILE.read_text()))


def lane_of(model: nn.Module) -> Lane:
    """Let the worker choose, as it does when it loads a model."""
    logits = cast("LanguageModel", model)(mx.array([[1]]), cache=own_caches(model))
    parts = model_parts(model, vocabulary=logits.shape[-1], heads=1)
    return choose_lane(parts, BLAS.sum_panel)


def layers_of(model: nn.Module) -> str:
    """Name the kinds of state that a model keeps."""
    kinds = {_own(leaf.kind) for layer in layer_caches(model) for leaf in layer.leaves}
    return ", ".join(sorted(kinds))


def _own(kind: str) -> str:
    return "its own" if kind == "unknown" else kind
