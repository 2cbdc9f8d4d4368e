"""``bramley embed``: the vectors of texts, as one JSON object."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from bramley.client.commands.answer import read_prompt
from bramley.client.commands.connection import router
from bramley.client.commands.screen import print_json

if TYPE_CHECKING:
    from bramley.client.embeddings import EmbedOptions, Pooling


def embed(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="-: read one from stdin.")],
    *,
    pooling: Annotated[
        str, typer.Option(help="mean or last. [default: as the model's files say]")
    ] = "",
    normalize: Annotated[bool, typer.Option("--normalize", help="To length 1.")] = False,
    dimensions: Annotated[
        int | None, typer.Option(help="The first so many values. [default: all]", min=1)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for the whole. [default: no limit]", min=0)
    ] = None,
) -> None:
    """Print the vectors of texts."""
    options: EmbedOptions = {"normalize": normalize, "dimensions": dimensions}
    if pooling:
        options["pooling"] = cast("Pooling", pooling)  # refused by name where it is none
    with router(context.obj) as client:
        found = client.embed(model, [*map(read_prompt, texts)], timeout_s=timeout, **options)
    print_json(
        {
            "embeddings": [[*one.values] for one in found],
            "prompt_tokens": [one.prompt_tokens for one in found],
        }
    )
