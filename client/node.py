"""What a state folder tells of the cluster that runs in it: the files its supervisor writes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bramley.common.errors import NoReadyWorker

if TYPE_CHECKING:
    from bramley.client.cluster import Process
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


class _Pidfile(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    name: str
    epoch: int
    pid: int
    addresses: dict[str, str] = {}


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


def orphans(state_dir: Path) -> "list[Process]":
    """Find what still runs of a cluster whose supervisor does not answer."""
    import psutil  # noqa: PLC0415 -- rarely

    from bramley.client.cluster import Process  # noqa: PLC0415

    lease = str((state_dir / "lease.json").resolve())
    found: list[Process] = []
    for file in sorted((state_dir / "processes").glob("*.json")):
        try:
            told = msgspec.json.decode(file.read_bytes(), type=_Pidfile)
            command = " ".join(psutil.Process(told.pid).cmdline())  # empty for a zombie
        except (OSError, msgspec.DecodeError, psutil.Error):
            continue
        if lease in command:  # or the pid is another's by now
            found.append(
                Process(
                    role=told.role,
                    name=told.name,
                    pid=told.pid,
                    state="orphaned",
                    epoch=told.epoch,
                    address=told.addresses.get("socket", ""),
                    restarts=0,
                    last_exit="",
                )
            )
    return found


def owner(state_dir: Path) -> "Lease | None":
    """Read the lease of the supervisor that owns ``state_dir`` now; None without an owner."""
    from bramley.common.lease import read_lease  # noqa: PLC0415 -- loads msgspec

    lease = read_lease(state_dir / "lease.json")
    return lease if lease is not None and lease.is_fresh(time.monotonic()) else None
