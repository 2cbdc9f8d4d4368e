"""The other side of a comparison: mlx-lm's own loops, and nothing but the model's products."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, generate_step

from bramley.bench.timeline import Timeline
from bramley.worker.cache.build import build_states
from bramley.worker.cache.table import RowTable
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
    table = RowTable()
    states = build_states(table, layer_caches(model))
    for row, prompt in enumerate(prompts):
        table.join()
        table.begin(range(row, row + 1), len(prompt))
        _forward(model, states, mx.array([prompt]))
        mx.eval([array for state in states for array in state.arrays()])
        table.commit()
    drawn = mx.array([[prompt[-1]] for prompt in prompts])
    steps: list[tuple[float, float]] = []
    for _ in range(tokens):
        table.begin(range(len(prompts)), 1)
        ahead = mx.argmax(_forward(model, states, drawn)[:, -1, :], axis=-1)[:, None]
        mx.async_eval(ahead)
        table.commit()
        drawn.tolist()
        drawn = ahead
        steps.append(_now())
    times = [at_s for at_s, _ in steps]
    return Timeline([times for _ in prompts], steps)


def _forward(model: nn.Module, states: Sequence[Any], ids: mx.array) -> mx.array:
    for state in states:
        state.prepare()
    return cast("mx.array", model(ids, cache=states))


class Products:
    """The matrix products of one step, without what is between them."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = list(_weights(model))

    def step_s(self, rows: int, steps: int) -> float:
        """Seconds that the products of a step of so many rows take."""
        widths = {weight.shape[1]: weight.dtype for weight in self._weights}
        inputs = {width: mx.ones((rows, 1, width), dtype) for width, dtype in widths.items()}
        mx.eval(inputs)
        start_s = time.monotonic()
        for step in range(steps + 1):
            if step == 1:  # the first is for warming up
                start_s = time.monotonic()
            mx.eval([inputs[weight.shape[1]] @ weight.T for weight in self._weights])
        return (time.monotonic() - start_s) / steps


def _weights(model: nn.Module) -> Iterator[mx.array]:
    modules = cast("Callable[[], list[tuple[str, nn.Module]]]", model.named_modules)()
    has_head = any(name.endswith("lm_head") for name, _ in modules)
    for _, module in modules:
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Embedding) and not has_head):
            yield module.weight
