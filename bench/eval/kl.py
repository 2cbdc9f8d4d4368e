"""``bramley eval kl``: KL(reference || candidate) at every position of the same texts.

The reference runs first, and its logits are kept on the disk, in its own precision; then it is
dropped, and the candidate runs and is compared piece by piece. So memory holds one model, and of
logits a few hundred positions; the disk holds positions x vocabulary x 4 bytes (2 in half
precision) meanwhile.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bramley.bench.eval.divergence import NotFinite
from bramley.bench.eval.lines import positive
from bramley.bench.eval.spread import Figures, Told
from bramley.client.commands.screen import print_json, print_table, say
from bramley.worker.models.blas import forget_blas, load_blas
from bramley.worker.models.errors import ModelError


def show(told: Told) -> None:
    """Print the figures for people."""
    header = ("", "texts", "positions", "mean", "median", "p95", "max", "top-1", "perplexities")
    rows = {**told.by_kind, "all": told.figures}
    print_table(header, [_cells(name, figures) for name, figures in rows.items()])
    figures, most = told.figures, told.worst
    print(f"\nKL(reference || candidate) in nats, candidate {told.mode}")
    if figures.mean_interval is not None:
        low, high = figures.mean_interval.low, figures.mean_interval.high
        print(f"mean {figures.mean:.3g}, 95 % between {low:.3g} and {high:.3g}")
    print(f"largest {most.kl:.3g} at position {most.position} of text {most.text}")


def _cells(name: str, figures: Figures) -> Sequence[str]:
    return (
        name,
        str(figures.texts),
        str(figures.positions),
        *(f"{value:.3g}" for value in (figures.mean, figures.median, figures.p95, figures.max)),
        f"{figures.agreement:.2%}",
        f"{figures.reference_perplexity:.3f} {figures.candidate_perplexity:.3f}",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("reference", type=Path, metavar="REFERENCE", help="a model folder")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE", help="another, or the same")
    parser.add_argument("--prompts", type=Path, metavar="FILE.jsonl", help="texts of your own")
    parser.add_argument("--limit", type=positive, metavar="N", help="so many of the texts")
    parser.add_argument(
        "--tokens", type=positive, default=256, help="of each text at most [default: 256]"
    )
    parser.add_argument(
        "--serving",
        action="store_true",
        help="run the candidate as its worker does: several rows, one decode step a token",
    )
    parser.add_argument(
        "--max-mean-kl", type=float, metavar="NATS", help="exit code 1 if the mean is larger"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="for the reference's logits")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; return the exit code."""
    blas = load_blas()
    # After the BLAS, which MLX finds only if it is there first.
    from bramley.bench.eval.measure import Wanted, measure  # noqa: PLC0415

    wanted = Wanted(
        reference=arguments.reference,
        candidate=arguments.candidate,
        texts=arguments.prompts,
        limit=arguments.limit,
        tokens=arguments.tokens,
        serving=arguments.serving,
        work=arguments.work,
    )
    try:
        told = measure(wanted, blas)
    except (NotFinite, ModelError) as error:
        say(str(error))
        return 1
    finally:
        forget_blas()
    if arguments.json:
        print_json(told)
    else:
        show(told)
    bound: float | None = arguments.max_mean_kl
    if bound is not None and not told.figures.mean <= bound:
        say(f"the mean, {told.figures.mean:.3g}, is over {bound:g}")
        return 1
    return 0
