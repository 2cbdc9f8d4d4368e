"""``bramley drain``: has the router admit nothing more, and waits for what runs."""

import typer

from bramley.client.commands.connection import router


def drain(context: typer.Context) -> None:
    """Refuse new requests, and return once none runs."""
    with router(context.obj) as client:
        finished = client.drain()
    typer.echo(f"drained: {finished} requests have ended meanwhile, and new ones are refused")
