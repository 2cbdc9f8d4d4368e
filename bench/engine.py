"""What the engine costs: ``python -m bramley.bench.engine [--part PART] [--model MODEL]``.

Each figure is of two sides that run in turn in this one process, on the same weights and the
same BLAS: medians, the median ratio, and how far it ranged. The exit code says whether every
requirement was met.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bramley.bench.figures import Figure, Machine, show
from bramley.common.main import leave
from bramley.worker.models.blas import forget_blas, load_blas

PARTS = ("alone", "together", "ideal", "logprobs", "host", "deliveries")
MODELS = ("smollm2", "tiny")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="all unless given")
    parser.add_argument("--model", choices=MODELS, action="append", help="both unless given")
    parser.add_argument("--turns", type=int, default=5, help="medians are over this many")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds in all to wait for a quiet machine"
    )
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure and print; return the exit code."""
    arguments = parse(sys.argv[1:])
    blas = load_blas()
    # After the BLAS, which MLX finds only if it is there first.
    from bramley.bench.models import write_models  # noqa: PLC0415
    from bramley.bench.parts import measure  # noqa: PLC0415

    print(f"matrices by {blas.name}", file=sys.stderr)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        models = write_models(Path(folder))
        chosen = {name: models[name] for name in arguments.model or MODELS}
        machine = Machine(arguments.patience)
        for figure in measure(arguments.part or PARTS, chosen, arguments.turns, machine, blas):
            figures.append(figure)
            print(*figure.cells(), file=sys.stderr, flush=True)
        others = machine.others_share()
    show(figures, others, as_json=arguments.json)
    forget_blas()
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    leave(code)
