"""Doors to a running cluster. gRPC is imported when the first one is opened."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bramley.client.node import NoCluster, owner, read_node
from bramley.common.errors import NoReadyWorker

if TYPE_CHECKING:
    from bramley.client.sync import Client


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
        unanswered = error.reason == "UNAVAILABLE"  # the router's own errors have a reason
        if unanswered and owner(state_dir) is None:
            raise NoCluster(state_dir) from error
        raise
