"""``bramley load``: has a model loaded, and waits until it serves."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.answer import SERVING
from bramley.client.commands.connection import router
from bramley.client.commands.screen import fail, progress_bar

if TYPE_CHECKING:
    from bramley.client.cluster import Model


def load(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    *,
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Do not unload it to make room, nor for being idle."),
    ] = False,
) -> None:
    """Load a model, and return once it serves."""
    last: Model | None = None
    with (
        router(context.obj) as client,
        progress_bar() as bar,
        closing(client.load_model(model, pin=pin)) as changes,
    ):
        for last in changes:
            bar.draw(f"{last.state} {model}", last.load_progress)
    if last is None or last.state not in SERVING:
        state = last.state if last is not None else "not loaded"
        reason = f": {last.reason}" if last is not None and last.reason else ""
        fail(f"model {model} is {state}{reason}")
    typer.echo(f"model {model} is {last.state}")
