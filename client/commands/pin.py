"""``bramley pin`` and ``bramley unpin``: whether a model may be unloaded by itself."""

from typing import Annotated

import typer

from bramley.client.commands.connection import router

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL")]


def pin(context: typer.Context, model: ModelArgument) -> None:
    """Keep a model loaded once it is: `unpin` it before `unload`."""
    with router(context.obj) as client:
        client.pin_model(model)
    typer.echo(f"model {model} is pinned")


def unpin(context: typer.Context, model: ModelArgument) -> None:
    """Let a model be unloaded to make room, or for being idle."""
    with router(context.obj) as client:
        client.pin_model(model, pinned=False)
    typer.echo(f"model {model} is no longer pinned")
