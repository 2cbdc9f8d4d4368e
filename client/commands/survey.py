"""Finds the model that is meant, for the process that looks at it: MLX is loaded there."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import typer

from bramley.client.node import NoCluster, read_node
from bramley.common.errors import InvalidRequest

_MODULE: Final = "bramley.bench.inventory"
_ANSWER_S: Final = 5.0


class Cluster(msgspec.Struct, frozen=True):
    """What a running cluster's router is told, as far as it counts here."""

    models: dict[str, dict[str, Any]] = {}
    memory_bytes: int = 0
    store_bytes: int = 0


def cluster_in(state_dir: Path) -> Cluster | None:
    """Ask the supervisor of a state folder; None where none answers."""
    try:
        node = read_node(state_dir)
    except NoCluster:
        return None
    from bramley.client.supervisor import router_settings  # noqa: PLC0415 -- gRPC
    from bramley.common.status import RemoteError  # noqa: PLC0415

    try:
        told = router_settings(node.node, _ANSWER_S)
    except RemoteError:
        return None
    return msgspec.json.decode(told, type=Cluster)


def settings_of(model: str, state_dir: Path, cluster: Cluster | None) -> dict[str, Any]:
    """Find a model: a folder, a .gguf file, or a name in a running cluster.

    Returns:
        What its worker would be told.

    Raises:
        InvalidRequest: there is no such model.
    """
    path = Path(model).expanduser()
    if path.exists():
        return {"path": str(path.absolute()), "import_dir": str(state_dir / "models")}
    if cluster is not None and model in cluster.models:
        return cluster.models[model]
    elsewhere = "nor a model of the cluster" if cluster else "and no cluster runs that may have it"
    raise InvalidRequest(
        "MODEL", f"{model} is neither a model folder nor a .gguf file, {elsewhere}"
    )


def look(command: str, settings: dict[str, Any], options: Sequence[str]) -> NoReturn:
    """Run the process that looks at a model, and end as it does.

    Raises:
        Exit: always.
    """
    told = msgspec.json.encode(settings).decode()
    arguments = [sys.executable, "-P", "-m", _MODULE, command, told, *options]
    ended = subprocess.run(arguments, check=False)  # noqa: S603
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 1)
