"""``bramley fit``: what a model would take in memory, beside what there is."""

import re
from typing import Annotated, Final

import typer

from bramley.client.commands.survey import cluster_in, look, settings_of
from bramley.common.errors import InvalidRequest

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,18}(\.[0-9]{1,9})?) ?(?P<unit>B|KiB|MiB|GiB|TiB|)")
_UNITS: Final = {"": 0, "B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}


def fit(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, or a cluster's model.")
    ],
    *,
    tokens: Annotated[
        int | None,
        typer.Option("--context", help="Tokens of each row. [default: the model's]", min=1),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Rows that run together. [default: max_rows]", min=1, max=256),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What it may take, as 12GiB. [default: the cluster's, less its store's share]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the memory that a model takes. Ends with 1 if that is too much."""
    cluster = cluster_in(context.obj)
    options = ["--json"] if as_json else []
    if budget is not None:
        options += ["--budget", str(bytes_of(budget))]
    elif cluster is not None and cluster.memory_bytes:
        options += ["--budget", str(cluster.memory_bytes), "--store", str(cluster.store_bytes)]
    for name, number in (("--context", tokens), ("--batch", batch)):
        if number is not None:
            options += [name, str(number)]
    look("fit", settings_of(model, context.obj, cluster), options)


def bytes_of(size: str) -> int:
    """Read a size as people write it.

    Returns:
        Bytes.

    Raises:
        InvalidRequest: it is none.
    """
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise InvalidRequest("--budget", f"{size!r} is no size, as 800MiB, 12GiB or bytes are")
    return int(float(found["number"]) * 1024 ** _UNITS[found["unit"]])
