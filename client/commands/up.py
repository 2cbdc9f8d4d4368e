"""``bramley up``: becomes the supervisor, or starts one beside and waits until it serves."""

import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.answer import ENDED, SERVING
from bramley.client.commands.beside import COMMAND, Beside
from bramley.client.commands.screen import fail, print_addresses, progress_bar
from bramley.client.node import NoCluster, Node, read_node

if TYPE_CHECKING:
    from bramley.client.cluster import Model

_POLL_S = 0.1
_ANSWER_S = 5.0


def up(
    context: typer.Context,
    settings: Annotated[
        Path | None, typer.Argument(metavar="[cluster.toml]", help="Settings of the cluster.")
    ] = None,
    *,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once every model serves.")
    ] = False,
    grpc: Annotated[
        str | None,
        typer.Option(
            help="host:port for gRPC; port 0: any. [default: the settings', or 127.0.0.1:7410]"
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            help="host:port for HTTP; port 0: any. [default: the settings', or 127.0.0.1:7411]"
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")
    ] = None,
) -> None:
    """Start a cluster."""
    state_dir: Path = context.obj
    arguments = [] if settings is None else [str(settings)]
    for option, value in (("--grpc", grpc), ("--http", http)):
        if value is not None:
            arguments += [option, value]
    for override in overrides or []:
        arguments += ["--set", override]
    if not detach:
        os.execv(COMMAND[0], [*COMMAND, "--state-dir", str(state_dir), *arguments])  # noqa: S606
    print_addresses(_start_beside(state_dir, arguments).addresses)


def _start_beside(state_dir: Path, arguments: Sequence[str]) -> Node:
    """Start the supervisor in a session of its own and wait until every model serves."""
    models: list[Model] | None = None
    with Beside(state_dir, arguments) as supervisor, progress_bar() as bar:
        for models in until_settled(state_dir, supervisor.process.pid):
            if supervisor.process.poll() is not None:
                fail(supervisor.last_words(), supervisor.code())
            bar.draw(*_stage(models))
            time.sleep(_POLL_S)
    for model in models or []:
        if model.state in ENDED:
            fail(f"model {model.name} is {model.state}: {model.reason} (the cluster runs on)")
    return read_node(state_dir)


def until_settled(state_dir: Path, pid: int) -> Generator["list[Model] | None"]:
    """Ask again and again for the models' states, until none is on its way.

    Args:
        state_dir: of the cluster.
        pid: of its supervisor.

    Yields:
        The models; None while the router does not answer.
    """
    while True:
        if node := _node_of(state_dir, pid):
            for models in _told_by(node.router):
                yield models
                if not any(map(_is_on_its_way, models)):
                    return
        yield None


def _told_by(target: str) -> Generator["list[Model]"]:
    """Ask a router for as long as it answers: the next one, after a takeover, is elsewhere."""
    from bramley.client.sync import Client  # noqa: PLC0415 -- after the supervisor was spawned
    from bramley.common.status import RemoteError  # noqa: PLC0415

    with Client(target) as client:
        while True:
            try:
                models = client.status(timeout_s=_ANSWER_S).models
            except RemoteError:
                return
            yield models


def _node_of(state_dir: Path, pid: int) -> Node | None:
    """Read what the supervisor ``pid`` wrote; None before it told of the router."""
    try:
        node = read_node(state_dir)
    except NoCluster:
        return None
    return node if node.pid == pid and node.router else None


def _is_on_its_way(model: "Model") -> bool:
    return model.state not in {*SERVING, *ENDED, "unloaded"}


def _stage(models: "list[Model] | None") -> tuple[str, float]:
    """Tell what the progress bar shows."""
    if not models:
        return "starting", 0.0
    done = [1.0 if model.state in SERVING else model.load_progress for model in models]
    names = ", ".join(model.name for model in models if _is_on_its_way(model))
    return f"loading {names}", sum(done) / len(done)
