"""``bramley cache list|pin|unpin|evict|export|import``: what is done with stored objects."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.connection import ANSWER_S, store
from bramley.client.commands.screen import fail, print_json, progress_bar, size_text
from bramley.client.node import read_node
from bramley.common.errors import InvalidRequest

if TYPE_CHECKING:
    from bramley.client.cache import CachedObject
    from bramley.client.selection import Selection
    from bramley.client.store import Store

_WIDTH = 200  # where no terminal says how wide it is
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="As `list` shows them, or any unique beginning."),
]
_Session = Annotated[str, typer.Option(help="Stored under this session key.", show_default=False)]
_Model = Annotated[str, typer.Option(help="Of this model, while it runs.", show_default=False)]
_Namespace = Annotated[
    str, typer.Option(help="Of this namespace, or a unique beginning of it.", show_default=False)
]


@contextmanager
def opened(state_dir: Path) -> Generator["Store"]:
    """Connect to the cluster's store, and learn what its workers keep there.

    Yields:
        The store.
    """
    target = store(state_dir)
    from bramley.client.namespaces import roots_by_model  # noqa: PLC0415 -- gRPC, from here on
    from bramley.client.store import Store  # noqa: PLC0415
    from bramley.client.supervisor import processes  # noqa: PLC0415

    running = processes(read_node(state_dir).node, ANSWER_S)
    with Store(target, roots_by_model(running, ANSWER_S)) as found:
        yield found


def list_objects(
    context: typer.Context,
    *,
    session: _Session = "",
    model: _Model = "",
    namespace: _Namespace = "",
    limit: Annotated[int, typer.Option(min=0, help="Of how many; 0 for all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what is stored."""
    with opened(context.obj) as target:
        from bramley.client.selection import listed  # noqa: PLC0415 -- gRPC

        found = listed(target, _selection((), session, model, namespace), limit)
    if as_json:
        print_json(found)
        return
    _show(found.objects)
    if found.more:
        typer.echo(f"... and more than {limit}: see --limit")


def pin(
    context: typer.Context,
    object_ids: _Ids = None,
    *,
    session: _Session = "",
    model: _Model = "",
    namespace: _Namespace = "",
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="90s, 30m, 1h, 1d; a day at most.")
    ] = "30m",
) -> None:
    """Keep objects from leaving for a while, whoever needs room."""
    seconds = _seconds(for_)
    with opened(context.obj) as target:
        found = _selected(target, _selection(object_ids, session, model, namespace))
        done = target.pin([one.id for one in found], seconds)
    typer.echo(
        f"{_objects(done.objects)} pinned for {_duration(seconds)};"
        f" {size_text(done.bytes)} are pinned of {size_text(done.bytes_max)} that may be"
    )


def unpin(
    context: typer.Context,
    object_ids: _Ids = None,
    *,
    session: _Session = "",
    model: _Model = "",
    namespace: _Namespace = "",
) -> None:
    """Let objects leave again."""
    with opened(context.obj) as target:
        found = _selected(target, _selection(object_ids, session, model, namespace))
        count = target.unpin([one.id for one in found])
    typer.echo(f"{_objects(count)} pinned no more")


def evict(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    object_ids: _Ids = None,
    *,
    session: _Session = "",
    model: _Model = "",
    namespace: _Namespace = "",
    everything: Annotated[bool, typer.Option("--all", help="All that is stored.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove objects, from RAM and from the disk, but for those that are still needed."""
    wanted = _selection(object_ids, session, model, namespace, everything=everything)
    with opened(context.obj) as target:
        found = _selected(target, wanted)
        size = size_text(sum(one.bytes for one in found))
        if not yes:
            typer.confirm(f"evict {_objects(len(found))}, {size}?", abort=True, err=True)
        done = target.evict([one.id for one in found])
    typer.echo(f"{_objects(done.objects)} evicted, {size_text(done.bytes)}")
    reasons = {
        "in use": done.held,
        "pinned": done.pinned,
        "followed by others that stay": done.followed,
    }
    if done.kept:
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        fail(f"{_objects(done.kept)} kept: {why}")


def export(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new one, on this machine.")],
    object_ids: _Ids = None,
    *,
    session: _Session = "",
    model: _Model = "",
    namespace: _Namespace = "",
    everything: Annotated[bool, typer.Option("--all", help="All that is stored.")] = False,
) -> None:
    """Write prefixes, with all that it takes to use them, to one file."""
    wanted = _selection(object_ids, session, model, namespace, everything=everything)
    path = _path(file)
    with opened(context.obj) as target, progress_bar() as bar:
        found = [one.id for one in _selected(target, wanted)]
        done = target.export_to(str(path), found, lambda share: bar.draw("exporting", share))
    typer.echo(f"{_objects(done.objects)} in {path}, {size_text(done.bytes)}")
    if done.left_out:
        typer.echo(f"{_objects(done.left_out)} left out: a part of their prompt has gone")


def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="That `export` wrote.")],
) -> None:
    """Take in the prefixes of a file, once all of it is proved."""
    path = _path(file)
    with opened(context.obj) as target, progress_bar() as bar:
        done = target.import_from(str(path), lambda share: bar.draw("importing", share))
    typer.echo(
        f"{_objects(done.objects)} taken in, {size_text(done.bytes)};"
        f" {done.skipped} were there already"
    )
    if done.held:
        typer.echo(f"{_objects(done.held)} of them in RAM alone: nothing is written now")


def _path(file: Path) -> Path:
    if str(file) == "-":
        raise InvalidRequest("FILE", "is the name of a file: the store reads and writes no stream")
    return file.expanduser().absolute()


def _selection(
    object_ids: Sequence[str] | None,
    session: str,
    model: str,
    namespace: str,
    *,
    everything: bool = False,
) -> "Selection":
    from bramley.client.selection import Selection  # noqa: PLC0415 -- gRPC

    return Selection(
        ids=tuple(object_ids or ()),
        session=session,
        model=model,
        namespace=namespace,
        everything=everything,
    )


def _selected(target: "Store", wanted: "Selection") -> "list[CachedObject]":
    from bramley.client.selection import selected  # noqa: PLC0415 -- gRPC

    return selected(target, wanted)


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None or not float(found[1]):
        raise InvalidRequest("--for", f"{text!r} is no time: write 90s, 30m, 1h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def _duration(seconds: float) -> str:
    for unit in "dhm":
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.3g}{unit}"
    return f"{seconds:.3g}s"


def _objects(count: int) -> str:
    return f"{count} object" if count == 1 else f"{count} objects"


def _printable(text: str) -> str:
    """Leave out what a terminal might obey: clients choose these words."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _show(objects: "Sequence[CachedObject]") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    header = ("id", "model", "kind", "tokens", "size", "promise", "tiers", "session")
    table = Table(*header, "idle", "pinned", box=None, pad_edge=False)
    ordered = sorted(objects, key=lambda one: (one.namespace, one.session, one.first_token))
    for one in ordered:
        table.add_row(
            one.short_id,
            one.model or f"({one.namespace[:8]})",
            one.kind,
            f"{one.first_token}..{one.end_token}",
            size_text(one.bytes),
            one.promise,
            "+".join(one.tiers),
            _printable(one.session),
            "" if one.idle_s is None else _duration(one.idle_s),
            _duration(one.pinned_s) if one.pinned_s else "",
        )
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(table)
