"""``bramley unload``: has a model's workers end, and waits until they have."""

from typing import Annotated

import typer

from bramley.client.commands.connection import router


def unload(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    *,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds for its running requests. [default: router.drain_timeout_s]",
            min=0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Unload a model once what runs has finished."""
    with router(context.obj) as client:
        client.unload_model(model, drain_timeout_s=drain_timeout)
    typer.echo(f"model {model} is unloaded")
