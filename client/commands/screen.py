"""What a person at a terminal sees beside the answers: errors and progress, on stderr."""

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import msgspec
import typer

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """A progress bar on stderr; it appears when first drawn, and only on a terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def draw(self, what: str, done: float) -> None:
        """Show that ``what`` is ``done``, 0 to 1."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = _new_bar()
        self._bar.update(self._bar.task_ids[0], description=what, completed=done)

    def erase(self) -> None:
        """Leave the line as it was before."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _new_bar() -> "Progress":
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task("", total=1.0)
    bar.start()
    return bar


@contextmanager
def progress_bar() -> Generator[Bar]:
    """Lend a bar, and erase it at the end.

    Yields:
        The bar.
    """
    bar = Bar()
    try:
        yield bar
    finally:
        bar.erase()


def say(message: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"bramley: {' '.join(message.split())}", err=True)


def fail(message: str, code: int = 1) -> NoReturn:
    """End the command with one line on stderr.

    Raises:
        Exit: always.
    """
    say(message)
    raise typer.Exit(code)


def print_json(value: object) -> None:
    """Print one JSON object on a line of its own."""
    typer.echo(msgspec.json.encode(value).decode())


def print_addresses(addresses: Mapping[str, str | None]) -> None:
    """Print where the cluster listens."""
    for kind, address in addresses.items():
        if address is not None:
            typer.echo(f"{kind:<7} {address}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print plain columns, each as wide as its widest cell: readable by people and by awk."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def size_text(count: int) -> str:
    """Say bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
