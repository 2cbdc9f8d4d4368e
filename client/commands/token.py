"""``bramley token``: draws a token, and the table by which a router knows it."""

import re
from typing import Annotated

import typer

from bramley.common.errors import InvalidRequest


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of who will hold it.")],
) -> None:
    """Make a token, shown this once. Its table goes into the file of router.auth.tokens_file."""
    from bramley.common.auth import NAME, digest_of, new_token  # noqa: PLC0415 -- only here

    if not re.fullmatch(NAME, name):
        raise InvalidRequest("NAME", "is letters, digits, '.', '_' and '-', 64 at most")
    drawn = new_token()
    # Apart, so that `bramley token NAME >> tokens.toml` writes what a router may know.
    typer.echo(f"The token, shown this once: {drawn}", err=True)
    typer.echo(f'[tokens."{name}"]\nsha256 = "{digest_of(drawn)}"')
