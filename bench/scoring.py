"""What log-probabilities add to a decode step: a few steps with them, a few without, and again.

Whole runs differ by more than what is to be seen here; neighbouring steps of one batch do not.
"""

import time
from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx import nn

from bramley.bench.figures import Figure
from bramley.bench.peers import Batch
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.sampler import RowRule, RowSampler

STEPS = 2  # a block

Draw = Callable[[mx.array], list[mx.array]]


def scoring(
    figure: Figure, model: nn.Module, prompts: Sequence[list[int]], top: int, blocks: int
) -> None:
    """Measure pairs of blocks, and add each to the figure, in milliseconds a step."""
    batch = Batch(model, prompts)
    draws = [_draw(logprobs, len(prompts)) for logprobs in (top, -1)]
    drawn = _block(batch, batch.first, draws[0])[1]  # kernels are compiled on first use
    for block in range(blocks):
        seconds = [0.0, 0.0]
        for side in (0, 1) if block % 2 else (1, 0):
            seconds[side], drawn = _block(batch, drawn, draws[side])
        figure.add(*(each * 1e3 / STEPS for each in seconds))


def _draw(logprobs: int, rows: int) -> Draw:
    sampler = RowSampler([RowRule(SamplingParams(), logprobs)] * rows)
    return lambda logits: sampler.draw(logits, [0] * rows).arrays()


def _block(batch: Batch, drawn: mx.array, draw: Draw) -> tuple[float, mx.array]:
    """Run steps as the engine does, one ahead of what is read; their seconds, and the last."""
    mx.synchronize()
    start_s = time.monotonic()
    pending: list[list[mx.array]] = []

    def keep(logits: mx.array) -> list[mx.array]:
        pending.append(draw(logits))
        return pending[-1]

    for _ in range(STEPS):
        drawn = batch.step(drawn, keep)
        if len(pending) > 1:
            _read(pending.pop(0))
    _read(pending.pop())
    return time.monotonic() - start_s, drawn


def _read(arrays: Sequence[mx.array]) -> None:
    for array in arrays:
        array.tolist()
