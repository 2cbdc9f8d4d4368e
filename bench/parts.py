"""The parts of the engine's benchmark: each measures sides in turn and gives its figures."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlx import nn

from bramley.bench import peers
from bramley.bench.figures import Figure, Machine, Required
from bramley.bench.ours import Ours
from bramley.bench.peer_models import load
from bramley.bench.scoring import scoring
from bramley.bench.served import serving
from bramley.bench.timeline import Timeline
from bramley.worker.models.blas import Blas
from bramley.worker.models.mlx_lm import load_model

# Threads of a BLAS spin for a while after their last product: the next side waits for that.
REST_S = 0.3
DELIVERIES = 32
DELIVERED_TOKENS = 120  # each: the first ones come while others' prompts load
PROMPT_TOKENS = 24


@dataclass(slots=True)
class Subject:
    """A model under measurement.

    Attributes:
        tokens: of each run, so that it lasts for seconds.
        gain: that eight or four rows must have over ``mlx_lm`` at as many.
    """

    name: str
    folder: Path
    tokens: int
    gain: float
    model: nn.Module
    ours: Ours
    machine: Machine
    sum_panel: int

    @property
    def is_launch_bound(self) -> bool:
        """Whether its products take no time worth speaking of."""
        return self.name == "tiny"


def subject(name: str, folder: Path, machine: Machine, sum_panel: int) -> Subject:
    """Load a model for both sides, for theirs by mlx-lm alone."""
    tokens, gain = {"smollm2": (48, 1.0), "tiny": (120, 1.15)}[name]
    ours = Ours.of(folder, sum_panel)
    return Subject(name, folder, tokens, gain, load(folder), ours, machine, sum_panel)


def prompts_for(rows: int) -> list[list[int]]:
    """Make prompts of different lengths, as a batch has them."""
    return [
        [(token * 37 + row * 11) % 900 + 50 for token in range(PROMPT_TOKENS + 5 * row)]
        for row in range(rows)
    ]


def in_turn(subject: Subject, turn: int, *sides: Callable[[], Timeline]) -> list[Timeline]:
    """Run each side once, another one first in each turn, with a rest before each."""
    order = [(place + turn) % len(sides) for place in range(len(sides))]
    came: dict[int, Timeline] = {}
    for place in order:
        subject.machine.rest(REST_S)
        came[place] = sides[place]()
    return [came[place] for place in range(len(sides))]


Part = Callable[[Subject, int], Iterator[Figure]]


def alone(subject: Subject, turns: int) -> Iterator[Figure]:
    """One stream against mlx-lm's own loop."""
    (prompt,) = prompts_for(1)
    figure = Figure(
        f"{subject.name}: one stream",
        "tok/s",
        ("ours", "mlx_lm"),
        required=Required(">=", 1.0),
    )
    for turn in range(turns):
        ours, theirs = in_turn(
            subject,
            turn,
            lambda: subject.ours.run([prompt], subject.tokens),
            lambda: peers.alone(subject.model, prompt, subject.tokens),
        )
        figure.add(ours.rate, theirs.rate)
    yield figure


def together(subject: Subject, turns: int) -> Iterator[Figure]:
    """Several streams against mlx-lm's batches."""
    for rows in (4, 8):
        prompts = prompts_for(rows)
        figure = Figure(
            f"{subject.name}: {rows} streams",
            "tok/s",
            ("ours", "mlx_lm"),
            required=Required(">=", subject.gain),
        )
        for turn in range(turns):
            ours, theirs = in_turn(
                subject,
                turn,
                lambda prompts=prompts: subject.ours.run(prompts, subject.tokens),
                lambda prompts=prompts: peers.together(subject.model, prompts, subject.tokens),
            )
            figure.add(ours.rate, theirs.rate)
        yield figure


def ideal(subject: Subject, turns: int) -> Iterator[Figure]:
    """What a batch gains over one stream, against what it could gain at most.

    Yields:
        Against the matrix products alone, and against products and exponentials, without which
        no forward is computed here (see peers.Products).
    """
    products = peers.Products(subject.model)
    required = None if subject.is_launch_bound else Required(">=", 0.85)
    against = ("products", "products and exponentials")
    figures = {
        (rows, what): Figure(
            f"{subject.name}: gain of {rows} rows, {what}",
            "x",
            ("ours", "ideal"),
            required=required,
        )
        for rows in (4, 8)
        for what in against
    }
    steps = max(subject.tokens // 2, 8)
    for _ in range(turns):
        rates: dict[int, float] = {}
        bounds: dict[tuple[int, str], float] = {}
        for rows in (1, 4, 8):
            subject.machine.rest(REST_S)
            rates[rows] = subject.ours.run(prompts_for(rows), subject.tokens).rate
            columns = PROMPT_TOKENS + subject.tokens // 2
            for what, read in zip(against, (None, columns), strict=True):
                subject.machine.rest(REST_S)
                bounds[rows, what] = rows / products.step_s(rows, steps, read)
        for (rows, what), figure in figures.items():
            figure.add(rates[rows] / rates[1], bounds[rows, what] / bounds[1, what])
    yield from figures.values()


def logprobs(subject: Subject, turns: int) -> Iterator[Figure]:
    """What log-probabilities add to a step, and what five alternatives do."""
    model = load_model(subject.folder, dequantize=True).model
    for rows in (1, 8):
        for what, top, most in (("logprobs", 0, 1.01), ("top 5", 5, 1.05)):
            figure = Figure(
                f"{subject.name}: {what}, {rows} rows",
                "ms a step",
                ("with", "without"),
                required=Required("<=", most),
            )
            subject.machine.rest(REST_S)
            scoring(figure, model, prompts_for(rows), top, 20 * turns)
            yield figure


def host(subject: Subject, turns: int) -> Iterator[Figure]:
    """CPU time of the stepping thread: the engine's, beside a bare forward's and mlx-lm's.

    It builds the step's graph and hands it over; the products are computed by other threads.
    What a bare forward takes of it is the model file's and our states'; the rest is the engine's
    and the sampler's.

    Yields:
        Both, at one row and at eight.
    """
    for rows in (1, 8):
        prompts = prompts_for(rows)
        sides = {"bare": peers.bare, "mlx_lm": peers.together}
        figures = [
            Figure(f"{subject.name}: host, {rows} rows", "us a step", ("ours", side))
            for side in sides
        ]
        for turn in range(turns):
            ours, *others = in_turn(
                subject,
                turn,
                lambda prompts=prompts: subject.ours.run(prompts, subject.tokens),
                *(partial(run, subject.model, prompts, subject.tokens) for run in sides.values()),
            )
            for figure, other in zip(figures, others, strict=True):
                figure.add(ours.cpu_s * 1e6, other.cpu_s * 1e6)
        yield from figures


def deliveries(subject: Subject, turns: int) -> Iterator[Figure]:
    """A worker with 32 streams that read, against its engine with nobody to tell."""
    figure = Figure(
        f"{subject.name}: {DELIVERIES} deliveries",
        "ms a step",
        ("served", "engine"),
        required=Required("<=", 1.1),
    )
    prompts = [prompt[:PROMPT_TOKENS] for prompt in prompts_for(DELIVERIES)]
    with (
        closing(Ours.of(subject.folder, subject.sum_panel, DELIVERIES)) as engine,
        asyncio.Runner() as runner,
    ):
        stack = AsyncExitStack()
        worker = runner.run(stack.enter_async_context(serving(subject.folder, DELIVERIES)))
        try:
            for turn in range(turns):
                served, plain = in_turn(
                    subject,
                    turn,
                    lambda: runner.run(worker.run(prompts, DELIVERED_TOKENS)),
                    lambda: engine.run(prompts, DELIVERED_TOKENS),
                )
                figure.add(served.step_s * 1e3, plain.step_s * 1e3)
        finally:
            runner.run(stack.aclose())
    yield figure


PARTS: dict[str, Part] = {
    "alone": alone,
    "together": together,
    "ideal": ideal,
    "logprobs": logprobs,
    "host": host,
    "deliveries": deliveries,
}


def measure(
    names: Sequence[str], models: dict[str, Path], turns: int, machine: Machine, blas: Blas
) -> Iterator[Figure]:
    """Measure parts of each model.

    Args:
        names: of the parts.
        models: folders, by name.
        turns: of each figure.
        machine: that they share with others.
        blas: under both sides.

    Yields:
        Each as soon as it is measured.
    """
    for name, folder in models.items():
        one = subject(name, folder, machine, blas.sum_panel)
        with closing(one.ours):
            one.ours.run(prompts_for(8), 16)  # warm
            for part in names:
                yield from PARTS[part](one, turns)
