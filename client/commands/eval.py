"""``bramley eval``: compares two models' distributions, or asks a model what has known answers."""

import os
import sys

import typer

_DOOR = ("state_dir", "address", "token_file", "ca", "certificate", "key")


def evaluate(context: typer.Context) -> None:
    """Evaluate a model (`bramley eval --help`)."""
    # A process of its own: what measures and what loads models is not the client's to import.
    command = [sys.executable, "-P", "-m", "bramley.bench.eval"]
    given = context.parent.params if context.parent is not None else {}
    for name in _DOOR:
        value: object = given.get(name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    os.execv(sys.executable, [*command, *context.args])  # noqa: S606
