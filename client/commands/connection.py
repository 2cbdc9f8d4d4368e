"""Doors to a running cluster. gRPC is imported when the first one is opened."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bramley.client.node import NoCluster, owner, read_node
from bramley.common.errors import InvalidRequest, NoReadyWorker, NotLoaded

if TYPE_CHECKING:
    from bramley.client.login import Login
    from bramley.client.sync import Client


ANSWER_S = 5.0
_OTHERS = 0o077


@dataclass(frozen=True)
class Remote:
    """A router that is called at its address, with no look at any state folder."""

    address: str
    login: "Login"


def remote(
    address: str,
    token_file: Path | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
) -> Remote:
    """Take what the command line says of a router elsewhere.

    Returns:
        The router, and what it is shown.

    Raises:
        InvalidRequest: the token's file cannot be used.
    """
    login: Login = {}
    if token_file is not None:
        login["token"] = _token_in(token_file)
    if ca is not None:
        login["ca"] = ca
    if certificate is not None:
        login["certificate"] = certificate
    if key is not None:
        login["key"] = key
    return Remote(address, login)


def _token_in(file: Path) -> str:
    try:
        if file.stat().st_mode & _OTHERS:
            raise InvalidRequest("--token-file", f"{file} is open to others: chmod 600")
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InvalidRequest("--token-file", f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("--token-file", f"{file} holds no token") from error


@contextmanager
def router(where: Path | Remote) -> Generator["Client"]:
    """Connect to the router of the cluster in a state folder, or to one elsewhere.

    Yields:
        The client.

    Raises:
        NoCluster: nothing answers and no supervisor owns the folder.
        NoReadyWorker: the cluster is about to start.
        RemoteError: the router answered with an error, or it alone does not answer.
    """
    from bramley.client.sync import Client  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    is_remote = isinstance(where, Remote)
    target = where.address if is_remote else read_node(where).router
    if not target:
        raise NoReadyWorker("the router is not up yet")
    login: Login = where.login if is_remote else {}
    try:
        with Client(target, **login) as client:
            yield client
    except RemoteError as error:
        if error.reason == "UNAVAILABLE":  # gRPC's own words; the router's errors have a reason
            if "connect" not in error.message:
                error.message = "the router went away in the middle of the answer"
            elif is_remote:
                error.message = f"no router answers at {target}: {error.message}"
            elif owner(where) is None:
                raise NoCluster(where) from error
            else:
                error.message = f"no router answers at {target}"
        raise


def store(where: Path | Remote) -> str:
    """Find the cache store of the cluster in a state folder, through its supervisor.

    Returns:
        Its gRPC target.

    Raises:
        InvalidRequest: the router is elsewhere; its store answers on its own machine alone.
        NoCluster: no supervisor answers.
        NotLoaded: the cluster runs no store, or none at the moment.
    """
    if isinstance(where, Remote):
        raise InvalidRequest("--address", "the store is asked on its own machine, without it")
    node = read_node(where)
    from bramley.client.supervisor import processes  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    try:
        running = processes(node.node, ANSWER_S)
    except RemoteError as error:
        raise NoCluster(where) from error
    for each in running:
        if (each.role, each.state) == ("store", "running"):
            return each.address
    raise NotLoaded("the cluster runs no cache store now", reason="NO_STORE")
