"""``bramley session``: conversations whose cached state is kept longest."""

from typing import Annotated

import typer

from bramley.client.commands.connection import router

app = typer.Typer(help="Look after conversations.", no_args_is_help=True)


@app.callback()
def session() -> None:
    """Look after conversations."""  # with one command alone, Typer would have no group


@app.command()
def close(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    session_key: Annotated[str, typer.Argument(metavar="SESSION", help="As its requests name it.")],
    *,
    salt: Annotated[str, typer.Option(help="The cache salt of its requests.")] = "",
) -> None:
    """End a conversation: what is cached of it is kept no longer than anything else."""
    with router(context.obj) as client:
        found = client.close_session(model, session_key, salt=salt)
    typer.echo("closed" if found else "nothing was kept of it")
