"""Makes reports of saved runs: ``python -m bramley.bench.serve.report RUN.json [RUN2.json ...]``.

Ratios are of a baseline, and only where both sides did the same work. Without any file to write,
the report is printed in Markdown. Give runs of five seeds or more to have intervals.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bramley.bench.serve import html, markdown, record, summary
from bramley.client.commands.screen import say
from bramley.common.errors import InvalidRequest


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bramley bench report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    parser.add_argument("--baseline", metavar="ARM", help="mlx_lm.server without it")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one page, whole in itself")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", help="figures without any text, in JSON"
    )
    parser.add_argument(
        "--cached-slack",
        type=int,
        default=0,
        metavar="TOKENS",
        help="by which cached tokens of two requests may differ for a ratio, beside a chat "
        "template's head, which the runs know; the report says so",
    )
    return parser.parse_args(arguments)


def write(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    """Read the runs and write what was asked for."""
    runs = [record.load(path) for path in arguments.runs]
    told = summary.summarise(runs, arguments.baseline, command, arguments.cached_slack)
    if arguments.html:
        arguments.html.write_text(html.page(runs, told))
    if arguments.summary:
        summary.save(told, arguments.summary)
    if arguments.markdown:
        arguments.markdown.write_text(markdown.report(told))
    elif not (arguments.html or arguments.summary):
        print(markdown.report(told), end="")


def main(given: Sequence[str]) -> int:
    """Do it; return the exit code."""
    arguments = parse(given)
    try:
        write(arguments, ["bramley", "bench", "report", *given])
    except (InvalidRequest, OSError) as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
