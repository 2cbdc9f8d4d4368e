"""``bramley inventory``: what a model is made of, told without loading its weights."""

from typing import Annotated

import typer

from bramley.client.commands.survey import cluster_in, look, settings_of


def inventory(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, or a cluster's model.")
    ],
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model is made of and what its rows keep. Reads no weights."""
    settings = settings_of(model, context.obj, cluster_in(context.obj))
    chosen = {"--tensors": tensors, "--json": as_json}
    look("inventory", settings, [name for name, wanted in chosen.items() if wanted])
