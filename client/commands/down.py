"""``bramley down``: asks the supervisor to end, and waits until it has."""

import os
import signal
import time
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.beside import Beside
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
    if lease is None and not has_node(state_dir):
        raise NoCluster(state_dir)
    give_up_s = time.monotonic() + timeout
    if lease is not None:
        with suppress(ProcessLookupError):
            os.kill(lease.pid, signal.SIGTERM)
        while is_alive(lease.pid):
            if time.monotonic() > give_up_s:
                fail(f"the supervisor (pid {lease.pid}) still runs after {timeout:.0f} s")
            time.sleep(_POLL_S)
    if has_node(state_dir):  # it died before its work was done
        _stop_what_is_left(state_dir, give_up_s)
    typer.echo(f"the cluster in {state_dir} has stopped")


def _stop_what_is_left(state_dir: "Path", give_up_s: float) -> None:
    """Have another supervisor end what a dead one left."""
    with Beside(state_dir, ["--stop"]) as supervisor:
        try:
            code = supervisor.process.wait(max(0.0, give_up_s - time.monotonic()))
        except TimeoutExpired:
            fail("what a dead supervisor left is still stopping")
        if code:
            fail(supervisor.last_words(), supervisor.code())


def is_alive(pid: int) -> bool:
    """Whether a process of that pid runs; one that only waits to be reaped does not."""
    import psutil  # noqa: PLC0415 -- only here

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
