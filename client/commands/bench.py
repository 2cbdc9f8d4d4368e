"""``bramley bench``: measures servers side by side, and reports what was measured."""

import os
import sys

import typer

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure servers side by side, and report it. Each has `--help` of its own.",
)
# The benchmark reads its arguments itself, `--help` included.
_PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": list[str](),
}


@app.command(context_settings=_PASSED_ON)
def serve(context: typer.Context) -> None:
    """Measure: decode, first tokens, long contexts, restarts, streams together, and more."""
    _become("bramley.bench.serve", context)


@app.command(context_settings=_PASSED_ON)
def report(context: typer.Context) -> None:
    """Compare what was measured, where it can be compared, as Markdown or HTML."""
    _become("bramley.bench.serve.report", context)


@app.command(context_settings=_PASSED_ON)
def history(context: typer.Context) -> None:
    """Keep what was measured in a local file, and show how it went over time."""
    _become("bramley.bench.serve.history", context)


def _become(module: str, context: typer.Context) -> None:
    command = [sys.executable, "-P", "-m", module, *context.args]
    os.execv(sys.executable, command)  # noqa: S606
