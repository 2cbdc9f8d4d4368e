"""Doors to a running cluster. gRPC is imported when the first one is opened."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bramley.client.node import NoCluster, owner, read_node
from bramley.common.errors import NoReadyWorker, NotLoaded

if TYPE_CHECKING:
    from bramley.client.sync import Client


ANSWER_S = 5.0


@contextmanager
def router(state_dir: Path) -> Generator["Client"]:
    """Connect to the router of the cluster in ``state_dir``.

    Yields:
        The client.

    Raises:
        NoCluster: nothing answers and no supervisor owns the folder.
        NoReadyWorker: the cluster is about to start.
        RemoteError: the router answered with an error, or it alone does not answer.
    """
    from bramley.client.sync import Client  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    target = read_node(state_dir).router
    if not target:
        raise NoReadyWorker("the router is not up yet")
    try:
        with Client(target) as client:
            yield client
    except RemoteError as error:
        if error.reason == "UNAVAILABLE":  # gRPC's own words; the router's errors have a reason
            if "connect" not in error.message:
                error.message = "the router went away in the middle of the answer"
            elif owner(state_dir) is None:
                raise NoCluster(state_dir) from error
            else:
                error.message = f"no router answers at {target}"
        raise


def store(state_dir: Path) -> str:
    """Find the cache store of the cluster in ``state_dir``, through its supervisor.

    Returns:
        Its gRPC target.

    Raises:
        NoCluster: no supervisor answers.
        NotLoaded: the cluster runs no store, or none at the moment.
    """
    node = read_node(state_dir)
    from bramley.client.supervisor import processes  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    try:
        running = processes(node.node, ANSWER_S)
    except RemoteError as error:
        raise NoCluster(state_dir) from error
    for each in running:
        if (each.role, each.state) == ("store", "running"):
            return each.address
    raise NotLoaded("the cluster runs no cache store now", reason="NO_STORE")
