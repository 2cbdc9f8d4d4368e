"""The ``bramley`` command: composes the commands and turns every error into one line."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bramley.client.commands import bench, cache, models, session
from bramley.client.commands.chat import chat
from bramley.client.commands.connection import remote
from bramley.client.commands.demo import demo
from bramley.client.commands.down import down
from bramley.client.commands.drain import drain
from bramley.client.commands.embed import embed
from bramley.client.commands.eval import evaluate
from bramley.client.commands.fit import fit
from bramley.client.commands.generate import generate
from bramley.client.commands.inventory import inventory
from bramley.client.commands.load import load
from bramley.client.commands.pin import pin, unpin
from bramley.client.commands.reload import reload
from bramley.client.commands.screen import say
from bramley.client.commands.status import status
from bramley.client.commands.token import token
from bramley.client.commands.top import top
from bramley.client.commands.unload import unload
from bramley.client.commands.up import up
from bramley.common.errors import BramleyError, InvalidRequest

app = typer.Typer(
    name="bramley",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    *(up, down, reload, status, top, load, unload, pin, unpin, drain),
    *(generate, chat, embed, token),
    *(inventory, fit),
):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(demo)
app.command(
    "eval",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # those are the evaluation's own
    },
)(evaluate)
app.add_typer(models.app, name="models")
app.add_typer(cache.app, name="cache")
app.add_typer(session.app, name="session")
app.add_typer(bench.app, name="bench")
# Ask the supervisor, or nobody: the machine itself.
HERE = {"up", "down", "reload", "status", "demo", "top", "token", "inventory", "fit", "bench"}


@app.callback()
def bramley(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    state_dir: Annotated[
        Path, typer.Option(help="Folder of the cluster's state.", file_okay=False)
    ] = Path("~/.bramley"),
    *,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A router elsewhere, instead of this state folder's; beyond loopback with TLS.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the token that it asks for. For its owner alone.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of who signed its certificate, if not public.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of your own certificate, if it asks for one.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of that certificate's key.")] = None,
) -> None:
    """Serve MLX language models behind one gRPC endpoint."""
    context.obj = state_dir.expanduser().absolute()
    if address is not None:
        if context.invoked_subcommand in HERE:
            problem = f"`bramley {context.invoked_subcommand}` is of this machine: leave it out"
            raise InvalidRequest("--address", problem)
        context.obj = remote(address, token_file, ca, certificate, key)
    elif any((token_file, ca, certificate, key)):
        raise InvalidRequest("--address", "is missing: the state folder's router asks for nothing")


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
