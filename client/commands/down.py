"""``bramley down``: asks the supervisor to end, and waits until it has."""

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.screen import fail
from bramley.client.node import NoCluster, has_node, owner

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.05


def down(
    context: typer.Context,
    *,
    timeout: Annotated[float, typer.Option(help="Longest wait, in seconds.", min=0)] = 300.0,
) -> None:
    """Stop the cluster: running requests finish first."""
    state_dir: Path = context.obj
    lease = owner(state_dir)
    if lease is None:
        if not has_node(state_dir):
            raise NoCluster(state_dir)
        fail(
            f"the supervisor of {state_dir} is gone: what it left ends by itself soon,"
            " or goes on under a new `bramley up`"
        )
    os.kill(lease.pid, signal.SIGTERM)
    give_up_s = time.monotonic() + timeout
    while is_alive(lease.pid):
        if time.monotonic() > give_up_s:
            fail(f"the supervisor (pid {lease.pid}) still runs after {timeout:.0f} s")
        time.sleep(_POLL_S)
    typer.echo(f"the cluster in {state_dir} has stopped")


def is_alive(pid: int) -> bool:
    """Whether a process of that pid runs; one that only waits to be reaped does not."""
    import psutil  # noqa: PLC0415 -- only here

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
