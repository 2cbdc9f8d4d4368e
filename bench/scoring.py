"""What log-probabilities add to a decode step: a step, then the scores of what it gave, alone.

The engine computes most of them beside the next step, so that this is the most that they add.
Steps with and without them differ less than steps do from each other. What a BLAS leaves spinning
after a step may take the scores' core: they are computed a few times, and the median counts.
"""

import statistics
import time
from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from bramley.bench.figures import Figure
from bramley.bench.peers import Batch
from bramley.worker.sampling.logprobs import score
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.sampler import RowRule, RowSampler


def scoring(
    figure: Figure, model: nn.Module, prompts: Sequence[list[int]], top: int, steps: int
) -> None:
    """Measure so many steps, and add each to the figure, in milliseconds."""
    batch = Batch(model, prompts)
    sampler = RowSampler([RowRule(SamplingParams())] * len(prompts))
    tokens = batch.first
    for step in range(1 + steps):
        start_s = time.monotonic()
        logits = batch.step(tokens)
        sampled = sampler.draw(logits, [0] * len(prompts))
        mx.eval(sampled.arrays())
        step_s = time.monotonic() - start_s
        tokens = sampled.tokens
        scores_s = statistics.median(_score_s(logits, tokens, top) for _ in range(5))
        if step:  # kernels are compiled on first use
            figure.add((step_s + scores_s) * 1e3, step_s * 1e3)


def _score_s(logits: mx.array, tokens: mx.array, top: int) -> float:
    start_s = time.monotonic()
    scores = score(logits, tokens, top)
    mx.eval(scores.arrays())
    list(scores.read())
    return time.monotonic() - start_s
