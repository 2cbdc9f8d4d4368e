"""Finds what gives a model's last hidden states: the model without its head."""

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
from mlx import nn

from bramley.worker.models.contract import LanguageModel

_BODIES = ("model", "transformer", "backbone")
# Their last norm is a part of the head.
_NORM_IN_HEAD = frozenset({"phixtral"})


def body_of(
    model: nn.Module, own_caches: Callable[[], Sequence[object]], vocabulary: int
) -> tuple[LanguageModel | None, int]:
    """Find a model's body, by the names that all model files use.

    Args:
        model: as a whole.
        own_caches: makes the caches that it would run on by itself.
        vocabulary: width of its logits.

    Returns:
        What is called as the model is and gives hidden states after the last norm, (B, L, W),
        and their width; None and 0 where body and head are one.
    """
    if getattr(model, "model_type", None) in _NORM_IN_HEAD:
        return None, 0
    text = _innermost(model)
    name = next((name for name in _BODIES if name in text), None)
    if name is None:
        return None, 0
    body = cast("LanguageModel", _innermost(cast("nn.Module", text[name])))
    width = body(mx.zeros((1, 1), mx.int32), cache=own_caches()).shape[-1]  # not evaluated
    return (None, 0) if width == vocabulary else (body, width)


def _innermost(module: nn.Module) -> nn.Module:
    """Go through what sees images as well to what reads text."""
    while "language_model" in module:
        module = cast("nn.Module", module["language_model"])
    return module
