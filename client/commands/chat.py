"""``bramley chat``: a conversation at the terminal."""

import sys
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands.answer import stream_text, wait_for
from bramley.client.commands.connection import router
from bramley.client.commands.sampling import MAX_TOKENS, MaxTokens, Seed, Temperature

if TYPE_CHECKING:
    from bramley.client.requests import Message, Options
    from bramley.client.sync import Client

_HELP = """/help   list the commands
/reset  forget the conversation
/exit   end, as Ctrl-D does
Ctrl-C  interrupt an answer"""


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    *,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = None,
    seed: Seed = None,
    session: Annotated[
        str, typer.Option(help="Name of the conversation, for the cache. [default: a random one]")
    ] = "",
) -> None:
    """Talk with a model. /reset forgets the conversation, /exit or Ctrl-D ends it, /help lists."""
    history: list[Message] = []
    options: Options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    options["progress"] = sys.stderr.isatty()
    options["session_key"] = session or _session_key()
    with router(context.obj) as client:
        wait_for(client, model)
        while (line := _read_line()) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                history.clear()
                options["session_key"] = _session_key()
            elif line == "/help":
                typer.echo(_HELP)
            elif line:
                _turn(client, model, history, line, options)


def _session_key() -> str:
    return f"chat-{uuid.uuid4().hex}"


def _turn(
    client: "Client", model: str, history: list["Message"], line: str, options: "Options"
) -> None:
    """Ask ``line`` and keep the turn; an interrupted one is forgotten."""
    asked: list[Message] = [*history, {"role": "user", "content": line}]
    try:
        with closing(client.generate(model, **{**options, "messages": asked})) as events:
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
