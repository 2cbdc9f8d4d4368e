"""The ``bramley`` command: composes the commands and turns every error into one line."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bramley.client.commands import cache, models, session
from bramley.client.commands.chat import chat
from bramley.client.commands.demo import demo
from bramley.client.commands.down import down
from bramley.client.commands.drain import drain
from bramley.client.commands.generate import generate
from bramley.client.commands.load import load
from bramley.client.commands.pin import pin, unpin
from bramley.client.commands.reload import reload
from bramley.client.commands.screen import say
from bramley.client.commands.status import status
from bramley.client.commands.unload import unload
from bramley.client.commands.up import up
from bramley.common.errors import BramleyError

app = typer.Typer(
    name="bramley",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (up, down, reload, status, load, unload, pin, unpin, drain, generate, chat):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(demo)
app.add_typer(models.app, name="models")
app.add_typer(cache.app, name="cache")
app.add_typer(session.app, name="session")


@app.callback()
def bramley(
    context: typer.Context,
    state_dir: Annotated[
        Path, typer.Option(help="Folder of the cluster's state.", file_okay=False)
    ] = Path("~/.bramley"),
) -> None:
    """Serve MLX language models behind one gRPC endpoint."""
    context.obj = state_dir.expanduser().absolute()


def main() -> None:
    """Run the command line.

    Exit codes: 0, 2 for bad input, 130 for an interruption, 1 for everything else; `up` has
    those of its supervisor.
    """
    try:
        app()
    except BramleyError as error:
        line, code = explain(error)
        say(line)
        sys.exit(code)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def explain(error: BramleyError) -> tuple[str, int]:
    """Word an error in one line, and choose the exit code.

    Returns:
        What happened, with the reason that logs name it by where another process said so;
        2 where the one who typed the command has to change it, or else 1.
    """
    from bramley.common.status import RemoteError  # noqa: PLC0415 -- loads gRPC

    code, line = error.code, error.message
    if isinstance(error, RemoteError):
        code = error.status_code.name
        if error.reason == "DEADLINE_EXCEEDED":  # gRPC's own words tell nothing
            line = "the time limit has passed"
        line = f"{line} [{error.reason}]"
    return line, 2 if code in {"INVALID_ARGUMENT", "NOT_FOUND"} else 1
