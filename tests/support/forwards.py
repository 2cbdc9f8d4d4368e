"""Rows of a model without an engine: given tokens are fed, and every logit is seen."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from bramley.worker.cache.build import model_caches
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import LanguageModel
from bramley.worker.models.mlx_lm import layer_caches
from support.architectures import states
from support.blas import BLAS

Logits = NDArray[np.float32]  # (tokens, vocabulary)

JUNK = 7  # what stands in padded columns


class Rows:
    """A table, one state a layer, and the forwards over them."""

    def __init__(self, model: nn.Module) -> None:
        self._model: LanguageModel = model
        self.table = RowTable(sum_panel=BLAS.sum_panel)
        self.layers = states(model, self.table)
        self._caches = model_caches(self.layers, layer_caches(model))

    def join(self) -> int:
        """Add an empty row at the end; its index."""
        self.table.join()
        return len(self.table.lengths) - 1

    def leave(self, row: int) -> None:
        """Remove a row; the last takes its place."""
        last = len(self.table.lengths) - 1
        if row != last:
            for layer in self.layers:
                layer.copy_row(last, row)
            self.table.copy(last, row)
        for layer in self.layers:
            layer.clear_row(last)
        self.table.clear(last)
        self.table.leave_last()

    def rollback(self, row: int, count: int) -> None:
        """Forget a row's last tokens."""
        for layer in self.layers:
            layer.rollback(row, count)
        self.table.rollback(row, count)

    def feed(self, content: Sequence[Sequence[int]], *, first: int = 0) -> list[Logits]:
        """Append tokens to the rows from ``first`` on, in one forward padded to the longest.

        Returns:
            For each row the logits after each of its tokens.
        """
        counts = [len(tokens) for tokens in content]
        width = max(counts)
        padded = [[*tokens, *[JUNK] * (width - len(tokens))] for tokens in content]
        self.table.begin(range(first, first + len(content)), width, counts)
        for layer in self.layers:
            layer.prepare()
        logits = self._model(mx.array(padded), cache=self._caches)
        mx.eval(logits, [layer.arrays() for layer in self.layers])
        self.table.commit()
        return [row[:count] for row, count in zip(as_numpy(logits), counts, strict=True)]


def as_numpy(logits: mx.array) -> Logits:
    """Copy logits out of MLX."""
    return cast("Logits", np.array(logits))
