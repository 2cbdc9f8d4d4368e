"""What the engine asks of a model: one call, and what state its layers keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx


class LanguageModel(Protocol):
    """A model file's class, of mlx-lm or our own."""

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        """Run one forward.

        Args:
            inputs: token ids, (B, L).
            cache: one state a layer, of the kinds that the model's layers want.

        Returns:
            Logits, (B, L, V).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The state that one layer keeps between steps.

    Attributes:
        kind: "full" holds every position, "rotating" the last ``window`` of them and the first
            ``keep``, "recurrent" a fixed size, "composite" several ``parts``.
        has_grouped_scores: whether its attention has an axis for the queries that share a key,
            and so must its mask: (B, 1, 1, L, width).
    """

    kind: Literal["full", "rotating", "recurrent", "composite", "unknown"]
    window: int = 0
    keep: int = 0
    has_grouped_scores: bool = False
    parts: tuple["LayerCache", ...] = ()
