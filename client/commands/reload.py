"""``bramley reload``: has the cluster's settings read again."""

from typing import TYPE_CHECKING

import typer

from bramley.client.node import NoCluster, read_node

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_S = 30.0  # the supervisor looks at the files of all models


def reload(context: typer.Context) -> None:
    """Take what has changed in cluster.toml, without a restart."""
    state_dir: Path = context.obj
    target = read_node(state_dir).node
    from bramley.client import supervisor  # noqa: PLC0415 -- loads gRPC
    from bramley.common.status import RemoteError  # noqa: PLC0415

    try:
        changed = supervisor.reload(target, _ANSWER_S)
    except RemoteError as error:
        if error.reason == "UNAVAILABLE":  # gRPC's own word
            raise NoCluster(state_dir) from error
        raise
    for key in changed or ["nothing has changed"]:
        typer.echo(key)
