"""``bramley status``: what runs, asked of the supervisor, so that it works without a router."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bramley.client.cluster import Memory, Model, Process, Status
from bramley.client.commands.screen import (
    print_addresses,
    print_json,
    print_table,
    size_text,
)
from bramley.client.node import NoCluster, Node, orphans, read_node

_ANSWER_S = 5.0


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints.

    Attributes:
        state: "running" while a supervisor answers, "orphaned" while only what it left runs,
            or else "stopped".
        addresses: by "grpc", "http", "socket" and "node"; None where there is none.
        models: empty while the router does not answer.
        version: the router's; None while it does not answer, as is memory.
    """

    state: str = "stopped"
    addresses: dict[str, str | None] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("grpc", "http", "socket", "node"))
    )
    processes: list[Process] = []
    models: list[Model] = []
    memory: Memory | None = None
    version: str | None = None


def status(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what runs, and where it listens."""
    state_dir: Path = context.obj
    found = cluster_status(state_dir)
    if as_json:
        print_json(found)
    elif found.state == "stopped":
        typer.echo(NoCluster(state_dir).message)
    else:
        _show(found)


def cluster_status(state_dir: Path) -> ClusterStatus:
    """Ask the supervisor, and the router where it answers."""
    try:
        node = read_node(state_dir)
    except NoCluster:
        return ClusterStatus()
    from bramley.client.supervisor import processes  # noqa: PLC0415 -- gRPC, from here on
    from bramley.client.sync import Client  # noqa: PLC0415
    from bramley.common.status import RemoteError  # noqa: PLC0415

    state = "running"
    try:
        running = processes(node.node, _ANSWER_S)
    except RemoteError:
        state, running = "orphaned", orphans(state_dir)
        if not running:
            return ClusterStatus()
    router: Status | None = None
    if node.router:
        with Client(node.router) as client, suppress(RemoteError):  # its process's state tells
            router = client.status(timeout_s=_ANSWER_S)
    return ClusterStatus(
        state=state,
        addresses=_addresses(node),
        processes=running,
        models=router.models if router else [],
        memory=router.memory if router else None,
        version=router.version if router else None,
    )


def _addresses(node: Node) -> dict[str, str | None]:
    kinds = ("grpc", "http", "socket")
    return {kind: node.addresses.get(kind) or None for kind in kinds} | {"node": node.node}


def _show(found: ClusterStatus) -> None:
    if found.state == "orphaned":
        typer.echo("no supervisor: `bramley up` takes over what runs, `bramley down` ends it")
    print_addresses(found.addresses)
    print_table(
        ("process", "pid", "state", "epoch", "restarts", "last exit"),
        [
            (
                each.role if each.name in {"", each.role} else f"{each.role} {each.name}",
                str(each.pid or ""),
                each.state,
                str(each.epoch),
                str(each.restarts),
                each.last_exit,
            )
            for each in found.processes
        ],
    )
    if found.version is None:
        typer.echo("the router does not answer")
    else:
        _show_models(found.models)
    if found.memory is not None and found.memory.budget_bytes:
        typer.echo(_ledger(found.memory))


def _ledger(memory: Memory) -> str:
    reserved, budget = size_text(memory.reserved_bytes), size_text(memory.budget_bytes)
    return f"memory: {reserved} of {budget} reserved, store {size_text(memory.store_bytes)}"


def _show_models(models: list[Model]) -> None:
    print_table(
        (
            *("model", "state", "context", "running", "waiting", "memory", "reserved", "pinned"),
            "reason",
        ),
        [
            (
                each.name,
                state_text(each),
                str(each.context_tokens or ""),
                str(each.requests_running),
                str(each.requests_waiting),
                size_text(each.memory_bytes) if each.memory_bytes else "",
                size_text(each.reserved_bytes) if each.reserved_bytes else "",
                "yes" if each.pinned else "",
                each.reason,
            )
            for each in models
        ],
    )


def state_text(model: Model) -> str:
    """Say how a model is, and of one that loads how far."""
    return f"loading {model.load_progress:.0%}" if model.state == "loading" else model.state
