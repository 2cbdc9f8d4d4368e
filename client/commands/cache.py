"""``bramley cache``: what is stored, whether it is whole, why a prompt hits or misses."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands import asking, cached
from bramley.client.commands.answer import read_prompt, wait_for
from bramley.client.commands.connection import ANSWER_S, router, store
from bramley.client.commands.screen import fail, print_json, progress_bar, size_text
from bramley.client.node import NoCluster
from bramley.common.errors import InvalidRequest

if TYPE_CHECKING:
    from bramley.client.cache import Explanation, StoreStats, Verified
    from bramley.client.requests import Message

_FOLDER = "cache.noindex"

app = typer.Typer(help="Look into the cache of computed prompts.", no_args_is_help=True)
for command in (cached.pin, cached.unpin, cached.evict, cached.export):
    app.command()(command)
app.command("list")(cached.list_objects)
app.command("import")(cached.import_file)


@app.command()
def stats(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show tiers, hits and refusals of the cache store since its start."""
    target = store(context.obj)
    from bramley.client.store import Store  # noqa: PLC0415 -- gRPC

    with Store(target) as opened:
        told = opened.stats(ANSWER_S)
    if as_json:
        print_json(told)
    else:
        _show(told)


@app.command()
def flush(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Without one: all models.")
    ] = None,
) -> None:
    """Write what is stored to the disk, so that it outlives a power cut."""
    with router(context.obj) as client:
        done = client.flush_cache(model)
    if not done.ok:
        fail(
            f"not all is on the disk: {done.pending} pending, {done.refused} refused,"
            f" {done.failed} failed, {done.missing} missing"
        )
    typer.echo(
        f"{size_text(done.bytes)} are on the disk, the longest prompt of"
        f" {done.longest_prefix_tokens} tokens"
    )


@app.command()
def explain(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="-: read it from stdin.")],
    *,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Render the prompt with the model's chat template, or take it as it is."
            " Without either: a template where the model has one.",
            show_default=False,
        ),
    ] = None,
    tools: asking.Tools = "",
    tool_choice: asking.ToolChoice = "",
    reasoning: asking.Reasoning = "",
    reasoning_effort: asking.ReasoningEffort = "",
) -> None:
    """Say how much of a prompt is stored, and why not more."""
    text = read_prompt(prompt)
    options = asking.prompt_options(tools, tool_choice, reasoning, reasoning_effort)
    with router(context.obj) as client:
        if chat is None:
            chat = wait_for(client, model).has_chat_template is not False
        if chat:
            messages: list[Message] = [{"role": "user", "content": text}]
            told = client.explain_cache(model, messages=messages, **options)
        else:
            told = client.explain_cache(model, text, **options)
    _say_why(told)


@app.command()
def verify(
    context: typer.Context,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Of a stopped store, where it is not in the state folder.", file_okay=False
        ),
    ] = None,
) -> None:
    """Read all that is stored, and prove it; works on a stopped cluster too."""
    state_dir: Path = context.obj
    try:
        target = store(state_dir)
    except NoCluster:
        raise typer.Exit(_check(folder or state_dir / _FOLDER)) from None
    if folder is not None:
        raise InvalidRequest("--folder", "is of a stopped cluster, and this one runs: leave it out")
    from bramley.client.store import Store  # noqa: PLC0415 -- gRPC

    with Store(target) as opened, progress_bar() as bar:
        found = opened.verify(lambda done: bar.draw("verifying", done))
    _say_proof(found, "objects")


@app.command()
def scrub(context: typer.Context) -> None:
    """Read all files of the disk tier now, and prove them; damaged ones are set aside.

    One that cannot be read is kept, until that has failed three times.
    """
    target = store(context.obj)
    from bramley.client.store import Store  # noqa: PLC0415 -- gRPC

    with Store(target) as opened, progress_bar() as bar:
        if not opened.stats(ANSWER_S).gauges.get("ssd_is_on"):
            typer.echo("there is no disk tier: nothing to scrub")
            return
        found = opened.verify(lambda done: bar.draw("scrubbing", done), files_only=True)
    _say_proof(found, "files")


def _say_proof(found: "Verified", what: str) -> None:
    problems = [
        f"{count} of {found.objects} {what} {outcome}"
        for count, outcome in (
            (len(found.corrupt), "were damaged, and are set aside"),
            (found.missing, "are not on the disk any more"),
            (found.unreadable, "could not be read, and are kept: try again"),
        )
        if count
    ]
    if problems:
        fail("; ".join(problems))
    typer.echo(f"{found.objects} {what} are whole")


def _check(folder: Path) -> int:
    """Look at the files of a store that does not run, and return the exit code."""
    command = [sys.executable, "-P", "-m", "bramley.cachestore.check", "--bodies", str(folder)]
    return subprocess.run(command, check=False).returncode  # noqa: S603


def _show(told: "StoreStats") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    counters, gauges = told.counters, told.gauges
    tiers = Table("tier", "bytes", "of", "objects read", "state", box=None, pad_edge=False)
    for tier, state in (("ram", "on"), ("ssd", _disk_state(gauges))):
        tiers.add_row(
            tier,
            size_text(gauges.get(f"{tier}_bytes", 0)),
            size_text(gauges.get(f"{tier}_budget_bytes", 0)),
            str(counters.get(f"acquired_{tier}", 0)),
            state,
        )
    hits, matches = counters.get("match_hits", 0), counters.get("matches", 0)
    facts = Table("what", "figure", box=None, pad_edge=False)
    facts.add_row("objects", str(gauges.get("objects", 0)))
    facts.add_row("waiting for the disk", size_text(gauges.get("pending_bytes", 0)))
    facts.add_row("hits", f"{hits} of {matches}, {counters.get('matched_tokens', 0)} tokens")
    facts.add_row("misses", str(matches - hits))
    for name, count in sorted(counters.items()):
        if name.startswith("refused_") and count:
            facts.add_row(f"refused: {name.removeprefix('refused_').replace('_', ' ')}", str(count))
    facts.add_row("damaged", str(counters.get("corrupt", 0)))
    console = Console()
    console.print(tiers)
    console.print()
    console.print(facts)


def _disk_state(gauges: dict[str, int]) -> str:
    if not gauges.get("ssd_is_on"):
        return "off"
    return "failing: full or sick" if gauges.get("ssd_is_failing") else "on"


def _say_why(told: "Explanation") -> None:
    typer.echo(told.explanation)
    tiers = [f"{count} in {tier}" for tier, count in told.cached_tokens.items() if count]
    typer.echo(f"{told.prompt_tokens} tokens: {', '.join(tiers) or 'none is stored'}")
    if told.mismatched_fields:
        typer.echo(f"differs in: {', '.join(told.mismatched_fields)}")
