"""What the engine asks of a model: one call."""

from collections.abc import Sequence
from typing import Any, Protocol

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
