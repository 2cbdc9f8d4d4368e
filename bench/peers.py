"""The other side of a comparison: mlx-lm's own loops, and nothing but the model's products."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, generate_step

from bramley.bench.timeline import Timeline
from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.table import RowTable
from bramley.worker.engine.cohort import Cohort
from bramley.worker.models.mlx_lm import layer_caches


def _now() -> tuple[float, float]:
    return time.monotonic(), time.thread_time()


def alone(model: nn.Module, prompt: list[int], tokens: int) -> Timeline:
    """Run mlx-lm's loop for one stream."""
    steps = [_now() for _ in generate_step(mx.array(prompt), model, max_tokens=tokens)]
    return Timeline([[at_s for at_s, _ in steps]], steps)


def together(model: nn.Module, prompts: Sequence[list[int]], tokens: int) -> Timeline:
    """Run mlx-lm's loop for several streams."""
    generator = BatchGenerator(model, max_tokens=tokens, prefill_batch_size=len(prompts))
    ids = generator.insert(list(prompts))
    times: dict[int, list[float]] = {number: [] for number in ids}
    steps: list[tuple[float, float]] = []
    while min(map(len, times.values())) < tokens:
        responses = generator.next_generated()
        steps.append(_now())
        for response in responses:
            times[response.uid].append(steps[-1][0])
    generator.close()
    return Timeline(list(times.values()), steps)


def bare(model: nn.Module, prompts: Sequence[list[int]], tokens: int) -> Timeline:
    """Run the model on our states with nothing around it: forward, argmax, the next."""
    batch = Batch(model, prompts)
    drawn = _next(batch, batch.first)
    steps: list[tuple[float, float]] = []
    for _ in range(tokens):
        ahead = _next(batch, drawn)
        drawn.tolist()
        drawn = ahead
        steps.append(_now())
    times = [at_s for at_s, _ in steps]
    return Timeline([times for _ in prompts], steps)


def _next(batch: "Batch", drawn: mx.array) -> mx.array:
    drawn = mx.argmax(batch.step(drawn), axis=-1)
    mx.async_eval(drawn)
    return drawn


class Batch:
    """Prompts on our states, prefilled but for their last tokens, which are ``first``."""

    def __init__(self, model: nn.Module, prompts: Sequence[list[int]]) -> None:
        self._model = cast("Any", model)
        table, layers = RowTable(), layer_caches(model)
        states = build_states(table, layers)
        caches = model_caches(states, layers)
        self._cohort = Cohort(table, states, lambda: caches)
        self.first = mx.array([prompt[-1] for prompt in prompts])
        for row, prompt in enumerate(prompts):
            self._cohort.join(row)
            self._forward(range(row, row + 1), mx.array([prompt[:-1]]))
            self._cohort.evaluate()

    def step(self, tokens: mx.array) -> mx.array:
        """Begin a step after ``tokens``, (B,), and return its logits, (B, V)."""
        return self._forward(range(len(tokens)), tokens[:, None])[:, -1, :]

    def _forward(self, rows: range, ids: mx.array) -> mx.array:
        with self._cohort.forward(self._model, ids, rows) as logits:
            return logits


class Products:
    """The matrix products of one step, without what is between them.

    MLX computes exponentials one after another on an x86 CPU: no batch makes them cheaper. So
    they can be had beside the products.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = list(_weights(model))
        args = cast("Any", model).args
        self._layers: int = args.num_hidden_layers
        self._units: int = args.intermediate_size
        self._heads: int = args.num_attention_heads

    def step_s(self, rows: int, steps: int, columns: int | None = None) -> float:
        """Seconds that the products of a step of so many rows take.

        Args:
            rows: of the batch.
            steps: to be timed.
            columns: that attention reads; with them, the exponentials of activations and
                attention are computed, too.

        Returns:
            The mean of the steps.
        """
        widths = {weight.shape[1]: weight.dtype for weight in self._weights}
        inputs = {width: mx.ones((rows, 1, width), dtype) for width, dtype in widths.items()}
        numbers = 0 if columns is None else rows * (self._units + self._heads * columns)
        exponents = mx.random.normal((self._layers, numbers))
        mx.eval(inputs, exponents)
        start_s = time.monotonic()
        for step in range(steps + 1):
            if step == 1:  # the first is for warming up
                start_s = time.monotonic()
            mx.eval([inputs[weight.shape[1]] @ weight.T for weight in self._weights])
            mx.eval(mx.exp(exponents))
        return (time.monotonic() - start_s) / steps


def _weights(model: nn.Module) -> Iterator[mx.array]:
    modules = cast("Callable[[], list[tuple[str, nn.Module]]]", model.named_modules)()
    has_head = any(name.endswith("lm_head") for name, _ in modules)
    for _, module in modules:
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Embedding) and not has_head):
            yield module.weight
