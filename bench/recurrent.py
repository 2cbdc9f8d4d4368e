"""What chunks gain over mlx-lm's loop where layers are recurrent: prompts of a qwen3.5 hybrid.

``python -m bramley.bench.recurrent [--model FOLDER | --shape SHAPE] [--json]``. Both sides run in
turn in this one process, on the same weights and the same BLAS. Weights are random without
``--model``: speed depends on shapes alone. First whole prompts, then the recurrent layers alone,
then the rule of one of them alone.
"""

import argparse
import sys
from pathlib import Path

from bramley.bench.figures import Figure, Machine, show
from bramley.common.main import leave
from bramley.worker.models.blas import forget_blas, load_blas


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder that holds a qwen3_5 model")
    parser.add_argument("--shape", choices=("tiny", "4b"), default="tiny", help="of random weights")
    parser.add_argument("--turns", type=int, default=5, help="medians are over this many")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    # Before MLX, which finds it only if it is there first.
    print(f"matrices by {load_blas().name}", file=sys.stderr)
    from bramley.bench.peer_hybrids import difference, layers, prompts, rule, subject  # noqa: PLC0415

    chosen = subject(arguments.model, arguments.shape)
    print(f"logits differ by {difference(chosen):.1e} of the largest", file=sys.stderr)
    figures: list[Figure] = []
    machine = Machine()
    for part in (prompts, layers, rule):
        for figure in part(chosen, arguments.turns):
            figures.append(figure)
            print(*figure.cells(), file=sys.stderr, flush=True)
    show(figures, machine.others_share(), as_json=arguments.json)
    forget_blas()
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    leave(code)
