"""What a state folder tells of the cluster that runs in it: the files its supervisor writes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bramley.common.errors import NoReadyWorker

if TYPE_CHECKING:
    from bramley.common.lease import Lease


_NODE_FILE = "node.json"


class NoCluster(NoReadyWorker):
    """No supervisor owns the state folder."""

    default_reason = "NO_CLUSTER"

    def __init__(self, state_dir: Path) -> None:
        super().__init__(f"no cluster runs in {state_dir}: start one with `bramley up`")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """``node.json``.

    Attributes:
        node: gRPC target of the supervisor's NodeService.
        addresses: of the router, by kind: "grpc", "http" and "socket"; empty before its start.
        pid: of the supervisor that wrote it.
    """

    node: str
    addresses: dict[str, str]
    pid: int
    epoch: int

    @property
    def router(self) -> str:
        """The gRPC target of the router: its unix socket, where it has one; empty at first."""
        return self.addresses.get("socket") or self.addresses.get("grpc", "")


def read_node(state_dir: Path) -> Node:
    """Read ``node.json``.

    Returns:
        What it says; whether that cluster still runs is another question.

    Raises:
        NoCluster: there is none, or it is not whole.
    """
    try:
        return msgspec.json.decode((state_dir / _NODE_FILE).read_bytes(), type=Node)
    except (OSError, msgspec.DecodeError) as error:
        raise NoCluster(state_dir) from error


def has_node(state_dir: Path) -> bool:
    """Whether a cluster has run here that did not end in good order, or still runs."""
    return (state_dir / _NODE_FILE).exists()


def owner(state_dir: Path) -> "Lease | None":
    """Read the lease of the supervisor that owns ``state_dir`` now; None without an owner."""
    from bramley.common.lease import read_lease  # noqa: PLC0415 -- loads msgspec

    lease = read_lease(state_dir / "lease.json")
    return lease if lease is not None and lease.is_fresh(time.monotonic()) else None
