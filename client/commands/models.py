"""``bramley models``: what the cluster serves; ``models import`` makes a model folder of a GGUF."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from bramley.client.cluster import Model
from bramley.client.commands.connection import router
from bramley.client.commands.screen import fail, print_json, print_table
from bramley.client.commands.status import state_text

app = typer.Typer(help="List the cluster's models, or import one.")


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the models of the cluster, and what each can do."""
    if context.invoked_subcommand is not None:
        return
    with router(context.obj) as client:
        listed = client.list_models()
    if as_json:
        print_json(listed)
    else:
        _show(listed)


def _show(models: list[Model]) -> None:
    print_table(
        ("model", "state", "context", "template", "reasoning", "tools", "reason"),
        [
            (
                each.name,
                state_text(each),
                str(each.context_tokens or ""),
                "" if each.has_chat_template is None else "yes" if each.has_chat_template else "no",
                _format(each.reasoning_format),
                _format(each.tool_format),
                each.reason,
            )
            for each in models
        ],
    )


def _format(name: str | None) -> str:
    """Say how a model writes something; nothing where that is not known."""
    return "" if name is None else name or "no"


@app.command("import")
def import_model(
    source: Annotated[Path, typer.Argument(metavar="FILE.gguf", exists=True, dir_okay=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", file_okay=False)],
) -> None:
    """Make a model folder of a GGUF file. No cluster is needed."""
    # A process of its own: only workers may load MLX.
    before = _marks(folder)
    command = [sys.executable, "-P", "-m", "bramley.worker.models.gguf", str(source), str(folder)]
    ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)  # noqa: S603
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["the import ended without a word"]
        fail(lines[-1], 2 if ended.returncode == 2 else 1)
    if before and _marks(folder) == before:
        typer.echo(f"already there: {folder}")
    else:
        typer.echo(f"imported {source} into {folder}")


def _marks(folder: Path) -> set[tuple[str, int]]:
    """Tell one content of a folder from another; empty if there is none."""
    return {(each.name, each.stat().st_mtime_ns) for each in folder.glob("*")}
