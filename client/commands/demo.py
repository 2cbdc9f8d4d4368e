"""``bramley demo``: the whole of it on this machine, in figures and on one screen."""

import os
import sys

import typer


def demo(context: typer.Context) -> None:
    """Show warm and cold answers, and that nothing is lost by a crash. Takes a minute or two.

    It runs a cluster of its own, in a folder of its own. Arguments go to `bramley up`.
    """
    command = [sys.executable, "-P", "-m", "bramley.bench.demo", *context.args]
    os.execv(sys.executable, command)  # noqa: S606
