"""What batches gain on a GPU: ``python -m bramley.bench.gpu [--shape SHAPE]``.

A model of random weights, since speed depends on shapes alone; mlx-lm's loops run in turn with
ours, on weights of the same shape, in this one process.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

import mlx.core as mx
from mlx import nn

from bramley.bench import peers
from bramley.bench.figures import Figure, Machine, Required, show
from bramley.bench.ours import Ours
from bramley.bench.peer_models import SHAPES, build
from bramley.bench.timeline import Timeline
from bramley.common.main import leave
from bramley.worker.engine.assembly import make_executor
from bramley.worker.engine.executor import Executor
from bramley.worker.models.mlx_lm import model_parts

ROWS = (1, 4, 8)
PRODUCT_STEPS = 50


def ours(shape: str, dtype: mx.Dtype) -> Ours:
    """Start our engine on a model of its own."""

    def load() -> Executor:
        model = build(shape, dtype)
        facts = SHAPES[shape]
        heads, vocabulary = facts["num_attention_heads"], facts["vocab_size"]
        return make_executor(model_parts(model, vocabulary=vocabulary, heads=heads))[0]

    return Ours(load, max(ROWS))


def measure(shape: str, tokens: int, prompt_tokens: int, turns: int) -> Iterator[Figure]:
    """Measure every number of rows beside mlx-lm, and what the batch gains."""
    dtype = mx.bfloat16 if mx.default_device().type == mx.DeviceType.gpu else mx.float32
    theirs = build(shape, dtype)
    with closing(ours(shape, dtype)) as mine:
        rates: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for rows in ROWS:
            prompts = [
                [(token * 37 + row * 11) % 900 + 50 for token in range(prompt_tokens + 5 * row)]
                for row in range(rows)
            ]
            required = Required(">=", 1.0 if rows == 1 else 1.2)
            figure = Figure(f"{shape}: {rows} rows", "tok/s", ("ours", "mlx_lm"), required=required)
            peer = partial(peers.alone, theirs, prompts[0], tokens)
            if rows > 1:
                peer = partial(peers.together, theirs, prompts, tokens)
            _pair(mine, peer, prompts, tokens)  # kernels are compiled on first use
            for _ in range(turns):
                here, there = _pair(mine, peer, prompts, tokens)
                rates[rows].append(here.rate)
                figure.add(here.rate, there.rate)
            yield figure
        for rows, least in ((4, 3.3), (8, 6.0)):
            gain = Figure(
                f"{shape}: gain of {rows} rows",
                "tok/s",
                (f"{rows}", "1"),
                required=Required(">=", least),
            )
            for many, one in zip(rates[rows], rates[1], strict=True):
                gain.add(many, one)
            yield gain
            yield _share(theirs, rows, gain)


def _share(model: nn.Module, rows: int, gain: Figure) -> Figure:
    """Of what the matrix products alone gain by so many rows, how much the engine's steps do."""
    products = peers.Products(model)
    share = Figure(f"{gain.what}, of the products'", "x", ("ours", "ideal"))
    share.required = Required(">=", 0.85)
    for ratio in gain.ratios:
        one_s, many_s = (products.step_s(count, PRODUCT_STEPS) for count in (1, rows))
        share.add(ratio, rows * one_s / many_s)
    return share


def _pair(
    mine: Ours, peer: Callable[[], Timeline], prompts: Sequence[list[int]], tokens: int
) -> tuple[Timeline, Timeline]:
    return mine.run(prompts, tokens), peer()


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="3b")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=500)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    machine = Machine()
    for figure in measure(arguments.shape, arguments.tokens, arguments.prompt, arguments.turns):
        figures.append(figure)
        print(*figure.cells(), file=sys.stderr, flush=True)
    show(figures, machine.others_share(), as_json=arguments.json)
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    leave(code)
