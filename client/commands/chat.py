"""``bramley chat``: a conversation at the terminal."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.answer import stream_text, wait_for
from bramley.client.commands.connection import router

if TYPE_CHECKING:
    from bramley.client.requests import Message
    from bramley.client.sync import Client


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
) -> None:
    """Talk with a model. /reset forgets the conversation, /exit or Ctrl-D ends it."""
    history: list[Message] = []
    with router(context.obj) as client:
        wait_for(client, model)
        while (line := _read_line()) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                history.clear()
            elif line:
                _turn(client, model, history, line)


def _turn(client: "Client", model: str, history: list["Message"], line: str) -> None:
    """Ask ``line`` and keep the turn; an interrupted one is forgotten."""
    asked: list[Message] = [*history, {"role": "user", "content": line}]
    try:
        with closing(
            client.generate(model, messages=asked, progress=sys.stderr.isatty())
        ) as events:
            answer = stream_text(events, write=True)
    except KeyboardInterrupt:
        typer.echo("(interrupted)", err=True)
        return
    history[:] = [*asked, {"role": "assistant", "content": answer.text}]


def _read_line() -> str | None:
    """Read what the person says; None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        typer.echo()
        return ""
